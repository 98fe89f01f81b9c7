// A callback trainer from the generated stubs: one rollout, and two refused calls whose details it decodes.
//
//	trainer AGENT_SERVER DRAINING_SERVER      prints one JSON object
//
// With -silent SECONDS the trainer keeps the first chat open for that time. The object then also has the number of
// connections that agent servers opened to the trainer, and how many of them ended while the chat was open. -ping
// SECONDS sets Callback.min_ping_interval.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "osmosis/rollout/v1"
)

const mebibyte = 1 << 20

var (
	silent = flag.Int("silent", 0, "seconds for which the first chat stays open")
	id     = flag.String("id", "go", "the beginning of the rollout ids")
	ping   = flag.Int("ping", 0, "Callback.min_ping_interval in seconds; 0 leaves it unset")
)

// connections counts the connections of a listener.
type connections struct{ begun, ended int32 }

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connections) HandleConn(_ context.Context, event stats.ConnStats) {
	switch event.(type) {
	case *stats.ConnBegin:
		atomic.AddInt32(&c.begun, 1)
	case *stats.ConnEnd:
		atomic.AddInt32(&c.ended, 1)
	}
}

// trainer answers each chat once and keeps the outcome.
type trainer struct {
	pb.UnimplementedTrainerServiceServer
	mutex   sync.Mutex
	replies map[string]chan struct{} // closed when the chat's reply is there
	chats   [][2]interface{}
	outcome chan *pb.RolloutOutcome
}

func (t *trainer) Chat(ctx context.Context, request *pb.ChatRequest) (*pb.ChatResponse, error) {
	key := fmt.Sprint(request.RolloutId, request.Attempt, request.Sample, request.ChatNumber)
	t.mutex.Lock()
	ready, again := t.replies[key]
	if !again {
		ready = make(chan struct{})
		t.replies[key] = ready
		t.chats = append(t.chats, [2]interface{}{request.Sample, request.ChatNumber})
		// A call that is cut does not stop the sampling.
		time.AfterFunc(time.Duration(*silent)*time.Second, func() { close(ready) })
	}
	t.mutex.Unlock()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return &pb.ChatResponse{
		Message:      &pb.Message{Role: "assistant", Content: &pb.Message_Text{Text: "[from Go]"}},
		FinishReason: "stop",
		Prompt:       &pb.TokenBlock{Ids: []uint32{1, 2, 3}},
		Tokens:       &pb.TokenBlock{Ids: []uint32{4, 5}, Logprobs: []float32{-0.5, -0.25}},
		Versions:     []*pb.VersionSpan{{Version: "go-1", Tokens: 2}},
	}, nil
}

func (t *trainer) Complete(_ context.Context, request *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	select {
	case t.outcome <- request.Outcome:
		return &pb.CompleteResponse{Receipt: pb.Receipt_RECEIPT_RECORDED}, nil
	default:
		return &pb.CompleteResponse{Receipt: pb.Receipt_RECEIPT_ALREADY_RECORDED}, nil
	}
}

func (t *trainer) AbandonChat(context.Context, *pb.AbandonChatRequest) (*pb.AbandonChatResponse, error) {
	return &pb.AbandonChatResponse{}, nil
}

// refusal returns the reason and the details of a refused call.
func refusal(err error) map[string]interface{} {
	shown := map[string]interface{}{"reason": nil, "fields": []string{}, "retry_seconds": nil}
	for _, detail := range status.Convert(err).Details() {
		switch known := detail.(type) {
		case *errdetails.ErrorInfo:
			shown["reason"] = known.Reason
		case *errdetails.BadRequest:
			fields := []string{}
			for _, violation := range known.FieldViolations {
				fields = append(fields, violation.Field)
			}
			shown["fields"] = fields
		case *errdetails.RetryInfo:
			shown["retry_seconds"] = known.RetryDelay.Seconds
		}
	}
	return shown
}

func connect(address string) pb.RolloutServiceClient {
	channel, err := grpc.Dial(address, grpc.WithInsecure())
	check(err)
	return pb.NewRolloutServiceClient(channel)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	flag.Parse()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	counted := &connections{}
	// The stock configuration, but for the size of a message: no option permits pings.
	server := grpc.NewServer(grpc.StatsHandler(counted), grpc.MaxRecvMsgSize(64*mebibyte))
	mine := &trainer{replies: map[string]chan struct{}{}, outcome: make(chan *pb.RolloutOutcome, 1)}
	pb.RegisterTrainerServiceServer(server, mine)
	go server.Serve(listener)

	callback := &pb.Callback{Target: listener.Addr().String(), Protocol: 1, Features: []string{"abandon_chat"}}
	if *ping > 0 {
		callback.MinPingInterval = &durationpb.Duration{Seconds: int64(*ping)}
	}
	question := &pb.Message{Role: "user", Content: &pb.Message_Text{Text: "What is 6 * 7?"}}
	request := func(id string) *pb.InitRequest {
		spec := &pb.RolloutSpec{Messages: []*pb.Message{question}}
		return &pb.InitRequest{RolloutId: id, Spec: spec, Callback: callback}
	}
	agents, draining := connect(flag.Arg(0)), connect(flag.Arg(1))
	limit := time.Duration(*silent+30) * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()

	answer, err := agents.Init(ctx, request(*id+"-1"))
	check(err)
	var outcome *pb.RolloutOutcome
	select {
	case outcome = <-mine.outcome:
	case <-ctx.Done():
		check(ctx.Err())
	}
	_, invalid := agents.Init(ctx, request(""))
	_, refused := draining.Init(ctx, request(*id+"-2"))
	segment := outcome.Samples[0].Segments[0]
	shown := map[string]interface{}{
		"created":   answer.Created,
		"tools":     len(answer.Tools),
		"chats":     mine.chats,
		"status":    outcome.Status.String()[len("OUTCOME_STATUS_"):],
		"ids":       segment.Ids,
		"logprobs":  segment.Logprobs,
		"mask_runs": segment.MaskRuns,
		"invalid":   refusal(invalid),
		"draining":  refusal(refused),
	}
	if *silent > 0 {
		shown["connections"] = atomic.LoadInt32(&counted.begun)
		shown["ended"] = atomic.LoadInt32(&counted.ended)
	}
	check(json.NewEncoder(os.Stdout).Encode(shown))
}
