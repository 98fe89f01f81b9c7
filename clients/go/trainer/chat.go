package trainer

import (
	"context"
	"fmt"
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
	// Messages is the whole history.
	Messages []*pb.Message
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
	reply   *pb.ChatResponse // nil before it is sampled; Trainer.mutex guards it
	err     error
}

// name names a chat. Without a sample it names an attempt.
type name struct {
	rollout string
	attempt uint32
	sample  string
	number  uint32
}

// isIn returns whether an AbandonChat names the chat. Without a number it names all chats of the sample.
func (n name) isIn(ask *pb.AbandonChatRequest) bool {
	return n.rollout == ask.RolloutId && n.attempt == ask.Attempt && (ask.Sample == "" || ask.Sample == n.sample) &&
		(ask.ChatNumber == 0 || ask.ChatNumber == n.number)
}

// Chat implements TrainerService. The first caller samples, also if ctx ends. Other callers wait for the same reply.
func (t *Trainer) Chat(ctx context.Context, ask *pb.ChatRequest) (*pb.ChatResponse, error) {
	chat, err := t.join(ctx, ask)
	if err != nil {
		return nil, err
	}
	chat.sampled.Do(func() { t.sample(chat) })
	return chat.reply, chat.err
}

// join returns the chat that a request names.
func (t *Trainer) join(ctx context.Context, ask *pb.ChatRequest) (*Chat, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ctx, ask.RolloutId, ask.Attempt, codes.NotFound)
	if err != nil {
		return nil, err
	} else if r.outcome != nil {
		return nil, wire.Refuse(codes.FailedPrecondition, "ROLLOUT_ENDED", "the rollout has ended")
	} else if ask.Policy != "" || ask.Sample == "" || ask.ChatNumber == 0 || ask.History == nil {
		return nil, wire.Refuse(codes.InvalidArgument, "INVALID_FIELD", "policy, sample, number or history is wrong")
	}
	full, delta, prefix := ask.GetFull(), ask.GetDelta(), ask.GetForkedPrefix()
	chat := &Chat{ChatRequest: ask, Messages: full.GetMessages(), Tools: ask.GetTools().GetTools(),
		ParentIDs: prefix.GetTokens().GetIds(), Known: int(prefix.GetMessages()), rollout: r}
	parent := r.answered(ask.Sample, full.GetParentChat()+delta.GetParentChat()) // one of the two is 0
	if parent != nil {
		chat.ParentIDs, chat.Known = parent.ids(), len(parent.Messages)+1
	}
	if delta != nil && parent == nil {
		return nil, wire.Refuse(codes.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known",
			&pb.UnknownChat{Sample: ask.Sample, ChatNumber: delta.ParentChat})
	} else if delta != nil {
		chat.Messages = parent.conversation(delta.Messages)
	}
	if known := r.chats[chat.name()]; known == nil {
		chat.ctx, chat.stop = context.WithCancel(r.ctx)
		r.chats[chat.name()] = chat
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
		chat.reply = reply
	} else if chats := chat.rollout.chats; chats[chat.name()] == chat {
		delete(chats, chat.name()) // asked again, it is sampled again
	}
}

// AbandonChat implements TrainerService. It stops the sampling of replies that are no longer wanted.
func (t *Trainer) AbandonChat(ctx context.Context, ask *pb.AbandonChatRequest) (*pb.AbandonChatResponse, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ctx, ask.RolloutId, ask.Attempt, codes.NotFound)
	if err != nil {
		return nil, err
	}
	for key, chat := range r.chats {
		if key.isIn(ask) && chat.reply == nil {
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
	r, err := t.find(ctx, outcome.GetRolloutId(), outcome.GetAttempt(), codes.InvalidArgument)
	if err != nil {
		return nil, err
	}
	receipt := pb.Receipt_RECEIPT_CONFLICT
	if r.outcome == nil {
		receipt = pb.Receipt_RECEIPT_RECORDED
		for _, sample := range outcome.Samples {
			r.fillIn(sample)
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

// fillIn adds the messages and tokens that a sample leaves out, because chats that were answered here have them.
func (r *rollout) fillIn(sample *pb.Sample) {
	if chat := r.answered(sample.Name, sample.PrefixChat); chat != nil {
		sample.Messages, sample.PrefixChat = chat.conversation(sample.Messages), 0
	}
	for _, segment := range sample.Segments {
		if len(segment.Ids) > 0 {
			continue
		}
		for _, number := range segment.Chats {
			chat := r.answered(sample.Name, number)
			if chat == nil {
				sample.Segments, sample.Trainable = nil, false
				sample.NotTrainableReason = fmt.Sprintf("a segment names chat %d, which was not answered here", number)
				return
			}
			segment.Ids = chat.ids() // the newest chat has the tokens of all
			segment.Logprobs = append(segment.Logprobs, chat.reply.GetTokens().GetLogprobs()...)
		}
	}
}

// answered returns a chat, or nil if it has no reply.
func (r *rollout) answered(sample string, number uint32) *Chat {
	chat := r.chats[name{r.name.rollout, r.name.attempt, sample, number}]
	if chat == nil || chat.reply == nil {
		return nil
	}
	return chat
}

func (c *Chat) name() name { return name{c.RolloutId, c.Attempt, c.Sample, c.ChatNumber} }

// ids returns the tokens of the prompt and the reply.
func (c *Chat) ids() []uint32 {
	return append(append([]uint32{}, c.reply.GetPrompt().GetIds()...), c.reply.GetTokens().GetIds()...)
}

// conversation returns the history, the reply, and further messages.
func (c *Chat) conversation(more []*pb.Message) []*pb.Message {
	return append(append(append([]*pb.Message{}, c.Messages...), c.reply.GetMessage()), more...)
}

// whole returns all that makes a chat different from another one, in one form.
func (c *Chat) whole() *pb.ChatRequest {
	return &pb.ChatRequest{History: &pb.ChatRequest_Full{Full: &pb.FullHistory{Messages: c.Messages}},
		Tools: c.ChatRequest.Tools, Sampling: c.Sampling, Purpose: c.Purpose}
}
