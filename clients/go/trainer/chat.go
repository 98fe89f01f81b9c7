package trainer

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "osmosis/rollout/v1"
	"osmosis/wire"
)

// Policy samples the reply to a chat. The reply has all ids of the prompt, and prompt_prefix 0. Without prompt, ids or
// logprobs the sample cannot be trained on. ctx ends when the reply is no longer wanted. An error of the package
// google.golang.org/grpc/status answers the chat with that status, for example UNAVAILABLE. Any other is INTERNAL.
type Policy func(ctx context.Context, chat *Chat) (*pb.ChatResponse, error)

// Chat is one chat: a request for a reply. A policy does not change it.
type Chat struct {
	*pb.ChatRequest
	wire.Answered
	// Tools are the tools to offer.
	Tools []*pb.Tool
	// ParentIDs has the tokens, prompt and reply, of the chat that this chat continues. The prompt begins with them.
	ParentIDs []uint32
	// Known is the number of messages that ParentIDs covers. The prompt goes on with the tokens of Messages[Known:].
	Known int

	rollout *rollout
	ctx     context.Context // of the sampling
	stop    context.CancelFunc
	sampled sync.Once
	err     error
}

// Chat implements TrainerService. The first caller samples, also if ctx ends. Other callers wait for the same reply.
func (t *Trainer) Chat(ctx context.Context, ask *pb.ChatRequest) (*pb.ChatResponse, error) {
	chat, err := t.join(ctx, ask)
	if err != nil {
		return nil, err
	}
	chat.sampled.Do(func() { t.sample(chat) })
	return chat.Reply, chat.err
}

// join returns the chat that a request names.
func (t *Trainer) join(ctx context.Context, ask *pb.ChatRequest) (*Chat, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ctx, wire.Attempt(ask), codes.NotFound)
	if err != nil {
		return nil, err
	} else if r.outcome != nil {
		return nil, wire.Refuse(codes.FailedPrecondition, "ROLLOUT_ENDED", "the rollout has ended")
	} else if ask.Policy != "" || ask.Sample == "" || ask.ChatNumber == 0 || ask.History == nil {
		return nil, wire.Refuse(codes.InvalidArgument, "INVALID_FIELD", "policy, sample, number or history")
	}
	full, delta, prefix := ask.GetFull(), ask.GetDelta(), ask.GetForkedPrefix()
	chat := &Chat{ChatRequest: ask, Answered: wire.Answered{Messages: full.GetMessages()}, rollout: r,
		Tools: ask.GetTools().GetTools(), ParentIDs: prefix.GetTokens().GetIds(), Known: int(prefix.GetMessages())}
	parent := r.answered(ask.Sample, full.GetParentChat()+delta.GetParentChat()) // one of the two is 0
	if parent != nil {
		chat.ParentIDs, chat.Known = parent.IDs(), len(parent.Messages)+1
	}
	if delta != nil && parent == nil {
		return nil, wire.Refuse(codes.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known",
			&pb.UnknownChat{Sample: ask.Sample, ChatNumber: delta.ParentChat})
	} else if delta != nil {
		chat.Messages = parent.Conversation(delta.Messages)
	}
	if known := r.chats[wire.Chat(ask)]; known == nil {
		chat.ctx, chat.stop = context.WithCancel(r.ctx)
		r.chats[wire.Chat(ask)] = chat
		return chat, nil
	} else if wire.Equal(known.whole(), chat.whole()) {
		return known, nil
	}
	return nil, wire.Refuse(codes.AlreadyExists, "CHAT_DIFFERS", "another chat has this number")
}

// sample asks the policy for the reply to a chat.
func (t *Trainer) sample(chat *Chat) {
	defer chat.stop()
	if chat.ChatRequest.Tools == nil { // it has those of the answer to the Init
		wait(chat.ctx, chat.rollout.accepted)
		chat.Tools = chat.rollout.tools
	}
	reply, err := t.config.Policy(chat.ctx, chat)
	if _, isStatus := status.FromError(err); chat.ctx.Err() != nil {
		err = wire.Refuse(codes.Unavailable, "UNAVAILABLE", "the sampling was stopped")
	} else if !isStatus {
		err = wire.Refuse(codes.Internal, "INTERNAL", "the policy failed: "+err.Error())
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if chat.err = err; err == nil {
		chat.Reply = reply
	} else if chat.rollout.chats[wire.Chat(chat)] == chat { // asked again, it is sampled again
		delete(chat.rollout.chats, wire.Chat(chat))
	}
}

// AbandonChat implements TrainerService. It stops the sampling of replies that are no longer wanted.
func (t *Trainer) AbandonChat(ctx context.Context, ask *pb.AbandonChatRequest) (*pb.AbandonChatResponse, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ctx, wire.Attempt(ask), codes.NotFound)
	if err != nil {
		return nil, err
	}
	for key, chat := range r.chats {
		if key.IsIn(ask) && chat.Reply == nil {
			chat.stop()
			delete(r.chats, key)
		}
	}
	if ask.Reason == "SUPERSEDED" { // there will be no outcome
		r.end(ErrSuperseded)
	}
	return &pb.AbandonChatResponse{}, nil
}

// Complete implements TrainerService. It records an outcome once.
func (t *Trainer) Complete(ctx context.Context, request *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	outcome := request.GetOutcome()
	r, err := t.find(ctx, wire.Attempt(outcome), codes.InvalidArgument)
	if err != nil {
		return nil, err
	}
	receipt := pb.Receipt_RECEIPT_CONFLICT
	if r.outcome == nil {
		receipt = pb.Receipt_RECEIPT_RECORDED
		for _, sample := range outcome.Samples {
			wire.FillIn(sample, func(number uint32) *wire.Answered { return r.answered(sample.Name, number) })
		}
		if t.config.OnOutcome != nil {
			t.config.OnOutcome(outcome)
		}
		r.outcome = outcome
		r.end(nil)
	} else if r.outcome.ResultId == outcome.ResultId {
		receipt = pb.Receipt_RECEIPT_ALREADY_RECORDED
	}
	return &pb.CompleteResponse{Receipt: receipt}, nil
}

// answered returns a chat, or nil if it has no reply.
func (r *rollout) answered(sample string, number uint32) *wire.Answered {
	key := wire.Name{Rollout: r.name.Rollout, Attempt: r.name.Attempt, Sample: sample, Number: number}
	if chat := r.chats[key]; chat != nil && chat.Reply != nil {
		return &chat.Answered
	}
	return nil
}

// whole returns all that makes a chat different from another one, in one form.
func (c *Chat) whole() *pb.ChatRequest {
	return &pb.ChatRequest{History: &pb.ChatRequest_Full{Full: &pb.FullHistory{Messages: c.Messages}},
		Tools: c.ChatRequest.Tools, Sampling: c.Sampling, Purpose: c.Purpose}
}
