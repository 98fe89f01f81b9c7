// Package wire has what the protocol says about messages: names, statuses as values, equality, and references to chats.
package wire

import (
	"time"

	legacy "github.com/golang/protobuf/proto"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	pb "osmosis/rollout/v1"
)

// Refuse returns a status as an error, with an ErrorInfo and further details.
func Refuse(code codes.Code, reason, message string, details ...proto.Message) error {
	info, _ := legacy.Marshal(&errdetails.ErrorInfo{Domain: "osmosis.rollout", Reason: reason})
	refused := &pb.Status{Code: int32(code), Message: message,
		Details: []*anypb.Any{{TypeUrl: "type.googleapis.com/google.rpc.ErrorInfo", Value: info}}}
	for _, detail := range details {
		packed, _ := anypb.New(detail)
		refused.Details = append(refused.Details, packed)
	}
	return Error(refused)
}

// Error returns the status of a frame as the error that a call would return. It is nil for OK. The two messages for a
// status are equal on the wire.
func Error(value *pb.Status) error {
	same := &spb.Status{}
	bytes, _ := proto.Marshal(value)
	legacy.Unmarshal(bytes, same)
	return status.ErrorProto(same)
}

// Status returns the error of a call as a status for a frame.
func Status(err error) *pb.Status {
	same := &pb.Status{}
	bytes, _ := legacy.Marshal(status.Convert(err).Proto())
	proto.Unmarshal(bytes, same)
	return same
}

// RetryAfter returns whether a refused Init may be sent again, and after which pause.
func RetryAfter(err error) (time.Duration, bool) {
	refused := status.Convert(err)
	for _, detail := range refused.Details() {
		if retry, is := detail.(*errdetails.RetryInfo); is {
			return time.Duration(retry.RetryDelay.GetSeconds()*1e9 + int64(retry.RetryDelay.GetNanos())), true
		}
	}
	switch refused.Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return time.Second, true
	}
	return time.Second, false
}
