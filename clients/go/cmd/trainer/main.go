// Command trainer is the trainer under test of docs/conformance.md. With -script it runs the rollouts of
// clients/calculator.json on the example agent examples/calculator instead.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "osmosis/rollout/v1"
	"osmosis/trainer"
)

var (
	mode      = flag.String("mode", "attach", "callback or attach")
	target    = flag.String("target", "", "HOST:PORT of the agent server")
	listen    = flag.String("listen", "127.0.0.1:0", "HOST:PORT for callbacks")
	advertise = flag.String("advertise", "", "HOST:PORT at which the agent server reaches --listen")
	count     = flag.Int("rollouts", 1, "the number of rollouts")
	prefix    = flag.String("prefix", "go", "the beginning of the rollout ids")
	history   = flag.String("history", "", "full or delta")
	poll      = flag.Float64("poll", trainer.PollInterval.Seconds(), "the seconds between two GetRollouts")
	script    = flag.String("script", "", "the file calculator.json")
)

type object map[string]interface{}

// scripted is one rollout of calculator.json.
type scripted struct {
	Question, Label string
	Replies         []struct {
		Content   string
		Seconds   *float64
		ToolCalls []struct{ Name, Arguments string } `json:"tool_calls"`
	}
}

var (
	scripts map[string]scripted
	output  sync.Mutex
)

func printLine(line object) {
	output.Lock()
	defer output.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
}

func policy(ctx context.Context, chat *trainer.Chat) (*pb.ChatResponse, error) {
	event := object{"event": "sampled", "rollout_id": chat.RolloutId, "attempt": chat.Attempt, "sample": chat.Sample,
		"chat_number": chat.ChatNumber}
	printLine(event)
	text := ""
	if len(chat.Messages) > 0 {
		text = chat.Messages[len(chat.Messages)-1].GetText()
	}
	reply := &pb.ChatResponse{FinishReason: "stop", Message: &pb.Message{Role: "assistant"}}
	seconds := 0.0
	fmt.Sscanf(text, "wait %f", &seconds)
	var version string
	if _, err := fmt.Sscanf(text, "version %s", &version); err == nil {
		reply.Versions = []*pb.VersionSpan{{Version: version, Tokens: 2}}
	}
	text = "echo: " + text
	if rollout, is := scripts[chat.RolloutId]; is {
		step := rollout.Replies[chat.ChatNumber-1]
		if text, seconds = step.Content, 0.2; step.Seconds != nil {
			seconds = *step.Seconds
		}
		for i, call := range step.ToolCalls {
			id, kind, name, arguments := fmt.Sprintf("call_%d_%d", chat.ChatNumber, i), "function", call.Name, call.Arguments
			reply.Message.ToolCalls = append(reply.Message.ToolCalls, &pb.ToolCall{Id: &id, Type: &kind,
				Function: &pb.FunctionCall{Name: &name, Arguments: &arguments}})
			reply.FinishReason = "tool_calls"
		}
	}
	select {
	case <-time.After(time.Duration(seconds * float64(time.Second))):
	case <-ctx.Done():
		event["event"] = "stopped"
		printLine(event)
		return nil, ctx.Err()
	}
	prompt := append([]uint32{}, chat.ParentIDs...)
	for _, message := range chat.Messages[chat.Known:] {
		prompt = append(prompt, uint32(1000+len(message.GetText())))
	}
	reply.Message.Content = &pb.Message_Text{Text: text}
	reply.Prompt = &pb.TokenBlock{Ids: prompt}
	reply.Tokens = &pb.TokenBlock{Ids: []uint32{chat.ChatNumber, uint32(2000 + len(text))}, Logprobs: []float32{-0.5, -0.25}}
	return reply, nil
}

func onOutcome(outcome *pb.RolloutOutcome) {
	samples := []object{}
	for _, sample := range outcome.Samples {
		segments := []object{}
		for _, segment := range sample.Segments {
			segments = append(segments, object{"ids": segment.Ids, "mask_runs": segment.MaskRuns,
				"logprobs": segment.Logprobs, "chats": segment.Chats})
		}
		samples = append(samples, object{"name": sample.Name, "trainable": sample.Trainable, "segments": segments})
	}
	printLine(object{"event": "outcome", "rollout_id": outcome.RolloutId, "attempt": outcome.Attempt,
		"result_id": outcome.ResultId, "status": outcome.Status.String()[len("OUTCOME_STATUS_"):], "reward": outcome.Reward, "samples": samples})
}

func requests() []*pb.InitRequest {
	var made []*pb.InitRequest
	user := func(text string) []*pb.Message {
		return []*pb.Message{{Role: "user", Content: &pb.Message_Text{Text: text}}}
	}
	for id, rollout := range scripts {
		label := rollout.Label
		spec := &pb.RolloutSpec{AgentLoop: "calculator", Messages: user(rollout.Question), Label: &label}
		made = append(made, &pb.InitRequest{RolloutId: id, Spec: spec})
	}
	for n := 1; n <= *count && scripts == nil; n++ {
		spec := &pb.RolloutSpec{AgentLoop: "conformance", Messages: user("start")}
		made = append(made, &pb.InitRequest{RolloutId: fmt.Sprintf("%s-%d", *prefix, n), Spec: spec})
	}
	return made
}

func report(id string, err error) {
	refused := status.Convert(err)
	if refused.Code() == codes.Aborted {
		os.Exit(1) // another trainer has the attachment
	}
	reason := ""
	for _, detail := range refused.Details() {
		if info, is := detail.(*errdetails.ErrorInfo); is {
			reason = info.Reason
		}
	}
	printLine(object{"event": "refused", "rollout_id": id, "status": codeNames[refused.Code()], "reason": reason})
}

func main() {
	flag.Parse()
	trainer.PollInterval = time.Duration(*poll * float64(time.Second))
	if *mode != "callback" && *mode != "attach" {
		os.Exit(3)
	}
	if *script != "" {
		data, err := os.ReadFile(*script)
		if err == nil {
			err = json.Unmarshal(data, &scripts)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	conn, err := grpc.Dial(*target, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	form := pb.HistoryForm(pb.HistoryForm_value["HISTORY_FORM_"+strings.ToUpper(*history)])
	config := trainer.Config{Policy: policy, OnOutcome: onOutcome, History: form}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(trainer.MaxMessageBytes))
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	if *advertise == "" {
		*advertise = listener.Addr().String()
	}
	if *mode == "callback" {
		config.Callback = &pb.Callback{Target: *advertise, History: form}
	}
	t := trainer.New(conn, config)
	if *mode == "callback" {
		pb.RegisterTrainerServiceServer(server, t)
		go server.Serve(listener)
	}
	var open sync.WaitGroup
	for _, request := range requests() {
		open.Add(1)
		go func(request *pb.InitRequest) {
			defer open.Done()
			if _, err := t.Rollout(context.Background(), request); err != nil {
				report(request.RolloutId, err)
			}
		}(request)
	}
	io.Copy(io.Discard, bufio.NewReader(os.Stdin))
	open.Wait()
	t.Close()
	server.GracefulStop()
}

var codeNames = map[codes.Code]string{
	codes.Canceled: "CANCELLED", codes.Unknown: "UNKNOWN", codes.InvalidArgument: "INVALID_ARGUMENT",
	codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.NotFound: "NOT_FOUND", codes.AlreadyExists: "ALREADY_EXISTS",
	codes.PermissionDenied: "PERMISSION_DENIED", codes.ResourceExhausted: "RESOURCE_EXHAUSTED",
	codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED", codes.OutOfRange: "OUT_OF_RANGE",
	codes.Unimplemented: "UNIMPLEMENTED", codes.Internal: "INTERNAL", codes.Unavailable: "UNAVAILABLE",
	codes.DataLoss: "DATA_LOSS", codes.Unauthenticated: "UNAUTHENTICATED",
}
