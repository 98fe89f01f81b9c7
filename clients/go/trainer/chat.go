package trainer

import (
	"context"
	"crypto/sha256"
	"errors"

	"github.com/golang/protobuf/ptypes/any"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
)

// Policy samples the reply to a chat. ctx ends when the reply is no longer wanted. An error of the package
// google.golang.org/grpc/status answers the chat with that status, for example UNAVAILABLE. Any other error is INTERNAL.
type Policy func(ctx context.Context, chat *Chat) (*Reply, error)

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

	digest  [sha256.Size]byte // of the whole request
	history [sha256.Size]byte // of the messages; once it is answered, with the reply
	ids     []uint32          // prompt and reply
	reply   *Reply
	err     error
	ready   chan struct{} // closed after the last change
	stop    context.CancelFunc
}

// Reply is the reply to a chat. Without Prompt, IDs or Logprobs the sample cannot be trained on.
type Reply struct {
	Message      *pb.Message
	FinishReason string
	Prompt       []uint32 // all ids of the prompt
	IDs          []uint32 // the sampled ids
	Logprobs     []float32
	Versions     []*pb.VersionSpan
	Usage        *pb.Usage
}

// answer answers a chat. It samples each chat once, however often it is asked, and also if ctx ends.
func (t *Trainer) answer(ctx context.Context, ask *pb.ChatRequest) (*pb.ChatResponse, error) {
	t.mutex.Lock()
	r, err := t.find(ask.RolloutId, ask.Attempt, codes.NotFound)
	t.mutex.Unlock()
	if err != nil {
		return nil, err
	}
	if ask.Tools == nil { // it has the tools of the Init, which may be answered later
		if err := wait(ctx, r.accepted); err != nil {
			return nil, err
		}
	}
	chat, parent, err := t.sample(ask)
	if err == nil {
		err = wait(ctx, chat.ready)
	}
	if err == nil {
		err = chat.err
	}
	if err != nil {
		return nil, err
	}
	return chat.reply.response(parent), nil
}

// sample returns a chat and the chat that it continues. It begins to sample a new chat.
func (t *Trainer) sample(ask *pb.ChatRequest) (*Chat, *Chat, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ask.RolloutId, ask.Attempt, codes.NotFound)
	if err != nil {
		return nil, nil, err
	}
	if isClosed(r.result.done) {
		return nil, nil, refusal(codes.FailedPrecondition, "ROLLOUT_ENDED", "the rollout has ended", nil)
	}
	if ask.Policy != "" || ask.Sample == "" || ask.ChatNumber == 0 {
		return nil, nil, refusal(codes.InvalidArgument, "INVALID_FIELD", "policy, sample or chat_number is wrong", nil)
	}
	chat := &Chat{ChatRequest: ask, Tools: r.tools, ready: make(chan struct{})}
	if ask.Tools != nil {
		chat.Tools = ask.Tools.Tools
	}
	parent := r.chats[name{ask.Sample, ask.GetFull().GetParentChat() + ask.GetDelta().GetParentChat()}]
	if parent != nil && (!isClosed(parent.ready) || parent.err != nil) {
		parent = nil
	}
	if delta := ask.GetDelta(); delta != nil {
		if parent == nil {
			return nil, nil, refusal(codes.FailedPrecondition, "UNKNOWN_CHAT", "the parent chat is not known",
				&pb.UnknownChat{Sample: ask.Sample, ChatNumber: delta.ParentChat})
		}
		chat.Messages, chat.Known = parent.conversation(delta.Messages), len(parent.Messages)+1
		chat.history = extend(parent.history, delta.Messages)
	} else if full := ask.GetFull(); full != nil {
		chat.Messages, chat.Known = full.Messages, int(full.PrefixMessages)
		chat.history = extend(chat.history, full.Messages)
	} else {
		return nil, nil, refusal(codes.InvalidArgument, "INVALID_FIELD", "history is missing", nil)
	}
	if parent != nil {
		chat.ParentIDs = parent.ids
	} else {
		chat.ParentIDs, chat.Known = ask.GetForkedPrefix().GetTokens().GetIds(), int(ask.GetForkedPrefix().GetMessages())
	}
	chat.digest = chat.identity()
	key := name{ask.Sample, ask.ChatNumber}
	if known := r.chats[key]; known != nil {
		if known.digest != chat.digest {
			return nil, nil, refusal(codes.AlreadyExists, "CHAT_DIFFERS", "another chat has this number", nil)
		}
		return known, parent, nil
	}
	ctx, stop := context.WithCancel(r.ctx)
	chat.stop = stop
	r.chats[key] = chat
	go func() {
		defer stop()
		reply, err := t.config.Policy(ctx, chat)
		t.mutex.Lock()
		defer t.mutex.Unlock()
		if err == nil && reply == nil {
			err = errors.New("it returned no reply")
		}
		if err != nil && ctx.Err() != nil {
			err = status.FromContextError(ctx.Err()).Err()
		} else if _, isStatus := status.FromError(err); !isStatus {
			err = refusal(codes.Internal, "INTERNAL", "the policy failed: "+err.Error(), nil)
		}
		if err == nil {
			chat.reply, chat.ids = reply, append(append([]uint32{}, reply.Prompt...), reply.IDs...)
			chat.history = extend(chat.history, []*pb.Message{reply.Message})
		} else if r.chats[key] == chat { // asked again, it is sampled again
			delete(r.chats, key)
		}
		chat.err = err
		close(chat.ready)
	}()
	return chat, parent, nil
}

// conversation returns the history, the reply, and further messages.
func (c *Chat) conversation(more []*pb.Message) []*pb.Message {
	return append(append(append([]*pb.Message{}, c.Messages...), c.reply.Message), more...)
}

// response leaves out the ids of the prompt that the server has from the parent.
func (r *Reply) response(parent *Chat) *pb.ChatResponse {
	response := &pb.ChatResponse{Message: r.Message, FinishReason: r.FinishReason, Usage: r.Usage, Versions: r.Versions}
	if r.IDs != nil {
		response.Tokens = &pb.TokenBlock{Ids: r.IDs, Logprobs: r.Logprobs}
	}
	if r.Prompt != nil {
		n := 0
		for parent != nil && n < len(r.Prompt) && n < len(parent.ids) && r.Prompt[n] == parent.ids[n] {
			n++
		}
		response.Prompt, response.PromptPrefix = &pb.TokenBlock{Ids: r.Prompt[n:]}, uint32(n)
	}
	return response
}

// abandon stops the sampling of chats whose replies are no longer wanted.
func (t *Trainer) abandon(ask *pb.AbandonChatRequest) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(ask.RolloutId, ask.Attempt, codes.NotFound)
	if err != nil {
		return
	}
	for key, chat := range r.chats {
		if key.isIn(ask) && !isClosed(chat.ready) {
			chat.stop()
			delete(r.chats, key)
		}
	}
	if ask.Reason == "SUPERSEDED" { // the attempt has no outcome
		t.end(r, nil, ErrSuperseded)
	}
}

func (n name) isIn(ask *pb.AbandonChatRequest) bool {
	return (ask.Sample == "" || ask.Sample == n.sample) && (ask.ChatNumber == 0 || ask.ChatNumber == n.number)
}

func wait(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// refusal returns a status with an ErrorInfo and, unless it is nil, another detail.
func refusal(code codes.Code, reason, message string, detail proto.Message) error {
	refused, err := status.New(code, message).WithDetails(&errdetails.ErrorInfo{Domain: "osmosis.rollout", Reason: reason})
	if err != nil {
		return status.Error(code, message)
	}
	whole := refused.Proto()
	if detail != nil {
		value, _ := proto.Marshal(detail)
		url := "type.googleapis.com/" + string(detail.ProtoReflect().Descriptor().FullName())
		whole.Details = append(whole.Details, &any.Any{TypeUrl: url, Value: value})
	}
	return status.ErrorProto(whole)
}
