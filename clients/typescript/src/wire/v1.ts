// The messages and services of osmosis.rollout.v1.

export * from "../../gen/google/rpc/error_details_pb.js";
export * from "../../gen/osmosis/rollout/v1/attach_pb.js";
export * from "../../gen/osmosis/rollout/v1/chat_pb.js";
export * from "../../gen/osmosis/rollout/v1/error_pb.js";
export * from "../../gen/osmosis/rollout/v1/message_pb.js";
export * from "../../gen/osmosis/rollout/v1/outcome_pb.js";
export * from "../../gen/osmosis/rollout/v1/rollout_pb.js";
export * from "../../gen/osmosis/rollout/v1/services_pb.js";
export * from "../../gen/osmosis/rollout/v1/tokens_pb.js";
