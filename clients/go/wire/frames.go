package wire

import (
	"google.golang.org/protobuf/encoding/protowire"

	pb "osmosis/rollout/v1"
)

// ChatReply returns the answer to a chat as a frame: a response, or the status of err.
func ChatReply(ask *pb.ChatRequest, response *pb.ChatResponse, err error) *pb.ChatReply {
	reply := &pb.ChatReply{RolloutId: ask.RolloutId, Attempt: ask.Attempt, Sample: ask.Sample,
		ChatNumber: ask.ChatNumber, Result: &pb.ChatReply_Response{Response: response}}
	if err != nil {
		reply.Result = &pb.ChatReply_Status{Status: Status(err)}
	}
	return reply
}

// CompleteReply returns the answer to an outcome as a frame: a receipt, or the status of err.
func CompleteReply(of *pb.RolloutOutcome, response *pb.CompleteResponse, err error) *pb.CompleteReply {
	reply := &pb.CompleteReply{RolloutId: of.GetRolloutId(), Attempt: of.GetAttempt(), ResultId: of.GetResultId(),
		Result: &pb.CompleteReply_Receipt{Receipt: response.GetReceipt()}}
	if err != nil {
		reply.Result = &pb.CompleteReply_Status{Status: Status(err)}
	}
	return reply
}

// UnknownFrame returns the answer to a frame of a kind that the stubs do not know.
func UnknownFrame(frame *pb.ServerFrame) *pb.UnknownFrame {
	number, _, _ := protowire.ConsumeTag(frame.ProtoReflect().GetUnknown())
	return &pb.UnknownFrame{FrameNumber: uint32(number)}
}
