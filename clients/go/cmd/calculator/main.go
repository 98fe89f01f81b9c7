// Command calculator runs one rollout of the example agent examples/calculator and prints what to train on.
//
//	calculator 127.0.0.1:50051
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"

	pb "osmosis/rollout/v1"
	"osmosis/trainer"
)

// policy calls a tool once, and answers with its result. A real policy samples from a model, token-in, token-out.
func policy(ctx context.Context, chat *trainer.Chat) (*pb.ChatResponse, error) {
	prompt := append([]uint32{}, chat.ParentIDs...)
	for _, message := range chat.Messages[chat.Known:] {
		for _, character := range []byte(message.GetText()) { // your tokenizer
			prompt = append(prompt, uint32(character))
		}
	}
	message := &pb.Message{Role: "assistant", Content: &pb.Message_Text{Text: ""}}
	if last := chat.Messages[len(chat.Messages)-1]; last.Role == "tool" {
		message.Content = &pb.Message_Text{Text: "#### " + last.GetText()}
	} else {
		id, name, arguments := "call_1", "multiply", `{"a": 6, "b": 7}`
		call := &pb.FunctionCall{Name: &name, Arguments: &arguments}
		message.ToolCalls = []*pb.ToolCall{{Id: &id, Function: call}}
	}
	reply := &pb.TokenBlock{Ids: []uint32{300, 301}, Logprobs: []float32{-0.1, -0.2}}
	return &pb.ChatResponse{Message: message, FinishReason: "stop", Prompt: &pb.TokenBlock{Ids: prompt},
		Tokens: reply}, nil
}

func main() {
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	conn, err := grpc.DialContext(ctx, os.Args[1], grpc.WithInsecure(), grpc.WithReturnConnectionError())
	if err != nil {
		log.Fatal(err)
	}
	t := trainer.New(conn, trainer.Config{Policy: policy})
	defer t.Close()
	question, label := &pb.Message{Role: "user", Content: &pb.Message_Text{Text: "What is 6 * 7?"}}, "42"
	spec := &pb.RolloutSpec{Messages: []*pb.Message{question}, Label: &label}
	outcome, err := t.Rollout(ctx, &pb.InitRequest{Spec: spec})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(outcome.Status, "reward", outcome.GetReward())
	for _, segment := range outcome.Samples[0].Segments { // train on these
		fmt.Println(len(segment.Ids), "tokens, mask runs", segment.MaskRuns, "and", len(segment.Logprobs), "logprobs")
	}
}
