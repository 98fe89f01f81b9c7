// Package trainer runs rollouts on an agent server and answers their chats with a policy.
//
// The agent server asks with calls of TrainerService (Config.Callback), or with the frames of a stream (Attach). Both
// lead to the same methods: Chat, AbandonChat and Complete.
package trainer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	checkInterval   = 10 * time.Second // between two questions whether the server still has a rollout
)

var (
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
	left     chan struct{} // closed after the last stream
	mutex    sync.Mutex
	rollouts map[name]*rollout
	owners   map[string]string // the id of a rollout by its credential
	ended    []*rollout        // oldest first
	err      error             // set when no rollout can start
}

// rollout is one attempt of a rollout. Trainer.mutex guards chats and outcome.
type rollout struct {
	name     name
	request  *pb.InitRequest
	ctx      context.Context // ends with the attempt, and stops its samplings
	stop     context.CancelFunc
	once     sync.Once
	err      error         // the reason for an end without an outcome
	accepted chan struct{} // closed when the Init is accepted and tools is set
	tools    []*pb.Tool
	chats    map[name]*Chat
	outcome  *pb.RolloutOutcome
}

// New returns a trainer for the agent server of a connection.
func New(conn grpc.ClientConnInterface, config Config) *Trainer {
	t := &Trainer{config: config, client: pb.NewRolloutServiceClient(conn), inits: make(chan *rollout),
		leaving: make(chan struct{}), left: make(chan struct{}), rollouts: map[name]*rollout{},
		owners: map[string]string{}}
	if config.Callback == nil {
		go t.attach()
		return t
	}
	close(t.left)
	t.config.Callback = &pb.Callback{RunId: randomID(), Protocol: 1, Features: features}
	proto.Merge(t.config.Callback, config.Callback)
	return t
}

// Close leaves the agent server. Open rollouts return ErrClosed; over a stream, the server ends them at once.
func (t *Trainer) Close() {
	t.fail(ErrClosed)
	close(t.leaving)
	<-t.left
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
func (t *Trainer) Rollout(ctx context.Context, request *pb.InitRequest) (*pb.RolloutOutcome, error) {
	request = proto.Clone(request).(*pb.InitRequest)
	if request.RolloutId == "" {
		request.RolloutId = randomID()
	}
	if request.Attempt == 0 {
		request.Attempt = 1
	}
	if t.config.Callback != nil {
		request.Callback = proto.Clone(t.config.Callback).(*pb.Callback)
		request.Callback.Credential = randomID()
	}
	r := &rollout{name: name{rollout: request.RolloutId, attempt: request.Attempt}, request: request,
		accepted: make(chan struct{}), chats: map[name]*Chat{}}
	r.ctx, r.stop = context.WithCancel(ctx)
	if err := t.add(r); err != nil {
		return nil, err
	}
	t.send(r)
	which := &pb.GetRolloutRequest{RolloutId: request.RolloutId, Attempt: request.Attempt}
	for t.config.Callback != nil && r.ctx.Err() == nil {
		wait(r.ctx, r.accepted)
		wait(r.ctx, time.After(checkInterval))
		if _, err := t.client.GetRollout(r.ctx, which); status.Code(err) == codes.NotFound {
			r.end(errForgotten)
		}
	}
	<-r.ctx.Done()
	outcome, err := t.finish(r)
	if err == errForgotten {
		request.Attempt++
		return t.Rollout(ctx, request)
	} else if outcome == nil && ctx.Err() != nil {
		err = ctx.Err()
		t.cancel(r)
	}
	return outcome, err
}

func (t *Trainer) add(r *rollout) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.rollouts[r.name] != nil {
		return status.Error(codes.AlreadyExists, "the trainer has run this attempt of the rollout")
	}
	t.rollouts[r.name], t.owners[r.authorization()] = r, r.name.rollout
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

func (t *Trainer) finish(r *rollout) (*pb.RolloutOutcome, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r.end(nil)
	r.chats = nil
	if t.ended = append(t.ended, r); len(t.ended) > maxEnded {
		delete(t.rollouts, t.ended[0].name)
		delete(t.owners, t.ended[0].authorization())
		t.ended = t.ended[1:]
	}
	return r.outcome, r.err
}

func (t *Trainer) cancel(r *rollout) {
	ctx, done := context.WithTimeout(context.Background(), callTimeout)
	defer done()
	t.client.Cancel(ctx, &pb.CancelRequest{Selection: &pb.CancelRequest_RolloutId{RolloutId: r.name.rollout},
		Attempt: r.name.attempt, Reason: "the trainer no longer waits for it"}, grpc.WaitForReady(true))
}

// find returns the attempt that a request names, or the status that refuses it. The caller holds the mutex.
func (t *Trainer) find(ctx context.Context, id string, attempt uint32, unknown codes.Code) (*rollout, error) {
	if call, is := metadata.FromIncomingContext(ctx); is { // a callback; frames have no credential
		owner, known := t.owners[strings.Join(call.Get("authorization"), " ")]
		if !known {
			return nil, wire.Refuse(codes.Unauthenticated, "UNAUTHENTICATED", "the credential is not known")
		} else if owner != id {
			return nil, wire.Refuse(codes.PermissionDenied, "PERMISSION_DENIED", "the credential is of another rollout")
		}
	}
	r := t.rollouts[name{rollout: id, attempt: attempt}]
	if r == nil {
		return nil, wire.Refuse(unknown, "ROLLOUT_UNKNOWN", "the attempt was not started here")
	} else if r.outcome == nil && r.ctx.Err() != nil {
		return nil, wire.Refuse(codes.Aborted, "ATTEMPT_SUPERSEDED", "the trainer does not wait for this attempt")
	}
	return r, nil
}

func (r *rollout) authorization() string { return "Bearer " + r.request.GetCallback().GetCredential() }

func randomID() string {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x", secret)
}

// wait waits until a channel has a value or is closed, or ctx ends.
func wait[T any](ctx context.Context, channel <-chan T) {
	select {
	case <-channel:
	case <-ctx.Done():
	}
}
