// Package trainer runs rollouts on an agent server and answers their chats with a policy.
//
// The agent server asks with calls of TrainerService (Config.Callback), or with the frames of a stream (Attach). Both
// lead to the same methods: Chat, AbandonChat and Complete.
package trainer

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
	"osmosis/wire"
)

const (
	// MaxMessageBytes is the size of messages that the gRPC server of a trainer with callbacks accepts.
	MaxMessageBytes = 64 << 20
	maxEnded        = 10000            // ended attempts whose outcomes the trainer recognizes when they come again
	callTimeout     = 30 * time.Second // of Init and Cancel
)

var (
	// PollInterval is the pause between two questions whether the server still has a rollout, with callbacks.
	PollInterval = 10 * time.Second
	// ErrClosed is the error of a rollout that is open when its trainer closes.
	ErrClosed = errors.New("the trainer is closed")
	// ErrSuperseded is the error of an attempt that a higher attempt replaced.
	ErrSuperseded = errors.New("a higher attempt of the rollout replaced this one")
	errForgotten  = errors.New("the server has forgotten the rollout")
	features      = []string{"abandon_chat", "goodbye"}
)

// Config is the configuration of a trainer.
type Config struct {
	// Policy samples the replies.
	Policy Policy
	// OnOutcome gets each outcome once, before the server gets its receipt. A trainer stores the outcome here. The
	// trainer waits for OnOutcome, which must not call the trainer. It may be nil.
	OnOutcome func(*pb.RolloutOutcome)
	// Callback has the HOST:PORT of a gRPC server in which the trainer is registered as TrainerService. Nil: the
	// trainer opens a stream.
	Callback *pb.Callback
	// History is the form of histories over a stream. Unset: deltas.
	History pb.HistoryForm
}

// Trainer runs rollouts on one agent server. All methods may be called from any goroutine.
type Trainer struct {
	pb.UnimplementedTrainerServiceServer
	config   Config
	client   pb.RolloutServiceClient
	inits    chan *rollout // wait for a stream with a free slot
	leaving  chan struct{} // closed by Close
	streams  sync.WaitGroup
	mutex    sync.Mutex
	rollouts map[wire.Name]*rollout
	owners   map[string]string // the id of a rollout by its credential
	ended    []*rollout        // oldest first
	err      error             // set when no rollout can start
}

// rollout is one attempt of a rollout. Trainer.mutex guards chats and outcome.
type rollout struct {
	name     wire.Name
	request  *pb.InitRequest
	ctx      context.Context // ends with the attempt, and stops its samplings
	stop     context.CancelFunc
	once     sync.Once
	err      error         // the reason for an end without an outcome
	accepted chan struct{} // closed when the Init is accepted and tools is set
	tools    []*pb.Tool
	chats    map[wire.Name]*Chat
	outcome  *pb.RolloutOutcome
}

// New returns a trainer for the agent server of a connection.
func New(conn grpc.ClientConnInterface, config Config) *Trainer {
	t := &Trainer{config: config, client: pb.NewRolloutServiceClient(conn), inits: make(chan *rollout),
		leaving: make(chan struct{}), rollouts: map[wire.Name]*rollout{}, owners: map[string]string{}}
	if config.Callback == nil {
		t.streams.Add(1)
		go t.attach()
		return t
	}
	t.config.Callback = &pb.Callback{RunId: wire.NewID(), Protocol: 1, Features: features}
	proto.Merge(t.config.Callback, config.Callback)
	return t
}

// Close leaves the agent server, once. Open rollouts return ErrClosed; over a stream, the server ends them at once.
func (t *Trainer) Close() {
	t.fail(ErrClosed)
	close(t.leaving)
	t.streams.Wait()
}

// fail ends all rollouts with an error. No other rollout can start.
func (t *Trainer) fail(err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.err = err
	for _, r := range t.rollouts {
		r.end(err)
	}
}

// Rollout runs a rollout and returns its outcome, which may be a failure. Without a RolloutId it makes one. If ctx
// ends first, Rollout cancels the rollout at the server and returns ctx.Err().
func (t *Trainer) Rollout(ctx context.Context, given *pb.InitRequest) (*pb.RolloutOutcome, error) {
	request := &pb.InitRequest{RolloutId: wire.NewID(), Attempt: 1}
	proto.Merge(request, given)
	if t.config.Callback != nil {
		request.Callback = proto.Clone(t.config.Callback).(*pb.Callback)
		request.Callback.Credential = wire.NewID()
	}
	r := &rollout{name: wire.Attempt(request), request: request,
		accepted: make(chan struct{}), chats: map[wire.Name]*Chat{}}
	r.ctx, r.stop = context.WithCancel(ctx)
	if err := t.add(r); err != nil {
		return nil, err
	}
	t.send(r)
	which := &pb.GetRolloutRequest{RolloutId: request.RolloutId, Attempt: request.Attempt}
	for t.config.Callback != nil && r.ctx.Err() == nil {
		wait(r.ctx, r.accepted)
		wait(r.ctx, time.After(PollInterval))
		if _, err := t.client.GetRollout(r.ctx, which); status.Code(err) == codes.NotFound {
			r.end(errForgotten)
		}
	}
	<-r.ctx.Done()
	t.mutex.Lock()
	r.end(nil)
	r.chats = nil
	if t.ended = append(t.ended, r); len(t.ended) > maxEnded {
		delete(t.rollouts, t.ended[0].name)
		delete(t.owners, t.ended[0].authorization())
		t.ended = t.ended[1:]
	}
	outcome, err := r.outcome, r.err
	t.mutex.Unlock()
	if err == errForgotten {
		request.Attempt++
		return t.Rollout(ctx, request)
	} else if outcome == nil && ctx.Err() != nil {
		selection := &pb.CancelRequest_RolloutId{RolloutId: request.RolloutId}
		canceling, done := context.WithTimeout(context.Background(), callTimeout)
		defer done()
		t.client.Cancel(canceling, &pb.CancelRequest{Selection: selection, Attempt: request.Attempt},
			grpc.WaitForReady(true))
		return nil, ctx.Err()
	}
	return outcome, err
}

func (t *Trainer) add(r *rollout) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.rollouts[r.name] != nil {
		return status.Error(codes.AlreadyExists, "the trainer has run this attempt of the rollout")
	}
	t.rollouts[r.name], t.owners[r.authorization()] = r, r.name.Rollout
	return t.err
}

// send sends an Init, in a call or over a stream with a free slot.
func (t *Trainer) send(r *rollout) {
	if t.config.Callback != nil {
		ctx, done := context.WithTimeout(r.ctx, callTimeout)
		defer done()
		response, err := t.client.Init(ctx, r.request)
		t.answered(r, response.GetTools(), err)
		return
	}
	select {
	case t.inits <- r:
	case <-r.ctx.Done():
	}
}

// answered takes the answer to an Init.
func (t *Trainer) answered(r *rollout, tools []*pb.Tool, err error) {
	if pause, again := wire.RetryAfter(err); err == nil {
		r.tools = tools
		close(r.accepted)
	} else if again && r.ctx.Err() == nil {
		time.AfterFunc(pause, func() { t.send(r) })
	} else {
		r.end(err)
	}
}

// end ends an attempt: without an outcome if err is not nil.
func (r *rollout) end(err error) {
	r.once.Do(func() {
		r.err = err
		r.stop()
	})
}

// find returns the attempt that a request names, or the status that refuses it. The caller holds the mutex.
func (t *Trainer) find(ctx context.Context, named wire.Name, unknown codes.Code) (*rollout, error) {
	if call, is := metadata.FromIncomingContext(ctx); is { // a callback; frames have no credential
		if owner, known := t.owners[strings.Join(call.Get("authorization"), " ")]; !known {
			return nil, wire.Refuse(codes.Unauthenticated, "UNAUTHENTICATED", "the credential is unknown")
		} else if owner != named.Rollout {
			return nil, wire.Refuse(codes.PermissionDenied, "PERMISSION_DENIED", "the credential is another's")
		}
	}
	r := t.rollouts[named]
	if r == nil {
		return nil, wire.Refuse(unknown, "ROLLOUT_UNKNOWN", "the attempt was not started here")
	} else if r.outcome == nil && r.ctx.Err() != nil {
		return nil, wire.Refuse(codes.Aborted, "ATTEMPT_SUPERSEDED", "the trainer does not wait for this attempt")
	}
	return r, nil
}

func (r *rollout) authorization() string { return "Bearer " + r.request.GetCallback().GetCredential() }

// wait waits until a channel has a value or is closed, or ctx ends.
func wait[T any](ctx context.Context, channel <-chan T) {
	select {
	case <-channel:
	case <-ctx.Done():
	}
}
