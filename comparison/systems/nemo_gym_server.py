"""The model server of NeMo Gym with training-token capture: `python -m ... PORT FOLDER ENGINE [prefix]`."""

import os
import sys
from pathlib import Path

import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig

port, folder, engine, *options = sys.argv[1:]
sys.argv[1:] = []  # hydra reads them
os.chdir(Path(folder).parent)  # and it writes where the process is
capture = {"enabled": True, "all_agents": True, "dir": folder, "rebuild_response": True}
settings = {"token_id_capture": capture, "policy_model": {"responses_api_models": {"vllm_model": {}}}}
config = VLLMModelConfig(
    host="127.0.0.1",
    port=int(port),
    entrypoint="app.py",
    name="policy_model",
    base_url=engine,
    api_key="x",
    model="mock",
    return_token_id_information=True,
    request_prompt_and_generation_token_ids=True,
    uses_reasoning_parser=True,
    supply_prefix_token_ids="prefix" in options,
)
head = BaseServerConfig(host="127.0.0.1", port=9999)  # never asked
client = ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(settings))
server = VLLMModel(config=config, server_client=client)
app = server.setup_webserver()
server.setup_exception_middleware(app)
uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)
