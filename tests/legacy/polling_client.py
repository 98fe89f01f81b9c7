"""A trainer of the Osmosis SDK after 0.3.0, written from the facts about its HTTP contract.

It posts rollouts without callbacks, streams replies at a URL that names the rollout, and asks for each result with the
lease of the rollout. Strict as the SDK is about answers and their statuses.
"""

import asyncio
import math
from typing import Any, Literal

from tests.legacy.old_controller import LLM_KEY, OldController, RewardedSample, Strict

LEASE = "X-Osmosis-Rollout-Lease"
ENDED = ("success", "failure", "cancelled")


class Admission(Strict):
    rollout_id: str
    status: Literal["queued"]
    polling_lease_token: str
    result_wait_timeout_sec: float
    polling_lease_timeout_sec: float


class Result(Strict):
    rollout_id: str
    status: Literal["queued", "running", "grading", "success", "failure", "cancelled"]
    sample: RewardedSample | None = None
    err_message: str | None = None
    err_category: (
        Literal["timeout", "validation_error", "http_error", "agent_error", "internal_error", "lease_expired"] | None
    ) = None


class Refused(Exception):
    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.body = status, body


class PollingClient(OldController):
    """Used as `async with PollingClient() as client`. The model is that of the controller."""

    def __init__(self, *args: Any, token: str = "", **options: Any) -> None:
        super().__init__(*args, one_sample=True, **options)
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def request(self, rollout_id: str | None = "r1", **more: Any) -> dict[str, Any]:
        row = {
            "rollout_id": rollout_id,
            "initial_messages": [{"role": "user", "content": "What is 2 * 3?"}],
            "label": "6",
            "metadata": None,
            "chat_completions_url": f"{self.url}/v1/rollouts/{rollout_id}",
            "llm_api_key": LLM_KEY,
            "grade": True,
            "agent_timeout_sec": None,
            "grader_timeout_sec": None,
            "extra_fields": None,
        }
        return row | more

    async def call(self, server: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON of a 2xx answer. Raises Refused."""
        url, sent = f"http://{server}{path}", self.headers | {key.replace("_", "-"): v for key, v in headers.items()}
        async with self._session.request(method, url, json=body, headers=sent) as got:
            answer = await got.json()
            if not 200 <= got.status < 300:
                raise Refused(got.status, answer)
            return answer

    async def admit(self, server: str, rollout_id: str | None = "r1", **more: Any) -> Admission:
        """Post a rollout, again after each 429."""
        while True:
            body = self.request(rollout_id, **more)
            async with self._session.post(f"http://{server}/rollout", json=body, headers=self.headers) as got:
                answer = await got.json()
                if got.status == 429:
                    pause = float(got.headers["Retry-After"])
                    assert math.isfinite(pause)
                    await asyncio.sleep(min(max(0.05, pause), 60.0))  # what the server asked for
                    continue
                if got.status != 202:
                    raise Refused(got.status, answer)
            admission = Admission.model_validate(answer)
            assert admission.polling_lease_timeout_sec > admission.result_wait_timeout_sec > 0
            return admission

    async def poll(self, server: str, admission: Admission) -> Result:
        """Ask for the result once."""
        path = f"/rollout/{admission.rollout_id}/result"
        answer = await self.call(server, "GET", path, X_Osmosis_Rollout_Lease=admission.polling_lease_token)
        return Result.model_validate(answer)

    async def result(self, server: str, admission: Admission) -> Result:
        """Ask for the result until it is there."""
        async with asyncio.timeout(30):
            while True:
                result = await self.poll(server, admission)
                assert result.rollout_id == admission.rollout_id
                if result.status in ENDED:
                    assert result.status == "success" or result.err_message
                    assert self.problems == []
                    return result

    async def run(self, server: str, rollout_id: str | None = "r1", **more: Any) -> Result:
        """Run a rollout to its end."""
        return await self.result(server, await self.admit(server, rollout_id, **more))
