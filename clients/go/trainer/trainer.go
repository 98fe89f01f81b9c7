// Package trainer runs rollouts on an agent server and answers their chats with a policy.
//
// With Config.Listen, the agent server calls the trainer back. Without it, one stream (Attach) carries everything.
package trainer

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
)

const (
	maxMessageBytes = 64 << 20
	maxEnded        = 10000 // ended rollouts whose outcomes the trainer recognizes when they come again
)

var (
	features = []string{"abandon_chat", "goodbye"}
	// ErrClosed is the error of a rollout that is open when its trainer closes.
	ErrClosed = errors.New("the trainer is closed")
	// ErrSuperseded is the error of an attempt that a higher attempt replaced.
	ErrSuperseded = errors.New("a higher attempt of the rollout replaced this one")
)

// Config is the configuration of a trainer.
type Config struct {
	// Target is the agent server: HOST:PORT.
	Target string
	// Policy samples the replies.
	Policy Policy
	// OnOutcome gets each outcome once, before the server gets its receipt. A trainer stores the outcome here.
	OnOutcome func(*Outcome)
	// Listen is the address for callbacks, for example "0.0.0.0:7000". Empty: the trainer opens a stream instead.
	Listen string
	// Advertise is the HOST:PORT at which the agent server reaches Listen. Empty: the address of the listener.
	Advertise string
	// History is the form of histories. Unset: full with callbacks, and over a stream only what is new since a parent chat.
	History pb.HistoryForm
	// MaxOpenChats limits the open chats of a stream. 0 means 256. See Trainer.SetMaxOpenChats.
	MaxOpenChats uint32
	// Dial has options for the connection, for example TLS. Empty: without TLS.
	Dial []grpc.DialOption
}

// Trainer runs rollouts on one agent server. All methods may be called from any goroutine.
type Trainer struct {
	config   Config
	client   pb.RolloutServiceClient
	link     transport
	mutex    sync.Mutex
	rollouts map[string]*rollout // the newest attempt of each
	ended    []*rollout          // oldest first
	err      error               // set when no rollout can start
}

// transport carries the messages of a trainer. No caller of a transport holds Trainer.mutex.
type transport interface {
	start(r *rollout)
	cancel(r *rollout)
	close(ctx context.Context)
}

// rollout is one attempt of a rollout. Trainer.mutex guards its fields.
type rollout struct {
	request  *pb.InitRequest
	secret   string // the credential of its callbacks
	result   *result
	ctx      context.Context // of its samplings
	stop     context.CancelFunc
	tools    []*pb.Tool
	accepted chan struct{} // closed when the Init is answered, or the attempt has ended
	chats    map[name]*Chat
	sent     bool // over the present stream: the Init was sent
}

// result is the result of all attempts of a rollout. It does not change after done is closed.
type result struct {
	done    chan struct{}
	outcome *Outcome
	err     error
}

// name names a chat within a rollout.
type name struct {
	sample string
	number uint32
}

func newRollout(request *pb.InitRequest, attempt uint32, secret string, result *result) *rollout {
	request = proto.Clone(request).(*pb.InitRequest)
	request.Attempt = attempt
	ctx, stop := context.WithCancel(context.Background())
	return &rollout{request: request, secret: secret, result: result, ctx: ctx, stop: stop,
		accepted: make(chan struct{}), chats: map[name]*Chat{}}
}

// New connects to an agent server. It returns when the server has answered, or when ctx ends.
func New(ctx context.Context, config Config) (*Trainer, error) {
	if config.MaxOpenChats == 0 {
		config.MaxOpenChats = 256
	}
	if len(config.Dial) == 0 {
		config.Dial = []grpc.DialOption{grpc.WithInsecure()}
	}
	sizes := grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes))
	conn, err := grpc.DialContext(ctx, config.Target, append([]grpc.DialOption{sizes}, config.Dial...)...)
	if err != nil {
		return nil, err
	}
	t := &Trainer{config: config, client: pb.NewRolloutServiceClient(conn), rollouts: map[string]*rollout{}}
	if config.Listen != "" {
		t.link, err = listen(ctx, t, conn)
	} else {
		t.link, err = attach(ctx, t, conn)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return t, nil
}

// Rollout starts a rollout and returns its outcome, which may be a failure. Without a RolloutId it makes one. If ctx
// ends first, Rollout cancels the rollout at the server and returns ctx.Err().
func (t *Trainer) Rollout(ctx context.Context, request *pb.InitRequest) (*Outcome, error) {
	attempt := request.Attempt
	if attempt == 0 {
		attempt = 1
	}
	r := newRollout(request, attempt, randomID(), &result{done: make(chan struct{})})
	if r.request.RolloutId == "" {
		r.request.RolloutId = randomID()
	}
	if err := t.add(r); err != nil {
		return nil, err
	}
	t.link.start(r)
	select {
	case <-r.result.done:
		return r.result.outcome, r.result.err
	case <-ctx.Done():
		t.link.cancel(r)
		return nil, ctx.Err()
	}
}

// Close leaves the agent server. Open rollouts return ErrClosed; over a stream, the server ends them at once.
func (t *Trainer) Close(ctx context.Context) {
	t.link.close(ctx)
	t.fail(ErrClosed)
}

func (t *Trainer) add(r *rollout) error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.err != nil {
		return t.err
	}
	id := r.request.RolloutId
	if lower := t.rollouts[id]; lower != nil {
		if lower.request.Attempt >= r.request.Attempt {
			return status.Errorf(codes.AlreadyExists, "rollout %s has attempt %d", id, lower.request.Attempt)
		}
		t.end(lower, nil, ErrSuperseded)
	}
	t.rollouts[id] = r
	return nil
}

// end ends a rollout with an outcome or an error. The caller holds the mutex.
func (t *Trainer) end(r *rollout, outcome *Outcome, err error) {
	if isClosed(r.result.done) {
		return
	}
	r.result.outcome, r.result.err = outcome, err
	close(r.result.done)
	r.leave()
	if t.ended = append(t.ended, r); len(t.ended) > maxEnded {
		if id := t.ended[0].request.RolloutId; t.rollouts[id] == t.ended[0] {
			delete(t.rollouts, id)
		}
		t.ended = t.ended[1:]
	}
}

// leave stops all samplings of an attempt and drops its chats. The caller holds the mutex.
func (r *rollout) leave() {
	r.stop()
	r.chats = nil
	r.accept(nil)
}

func (r *rollout) accept(tools []*pb.Tool) {
	if !isClosed(r.accepted) {
		r.tools = tools
		close(r.accepted)
	}
}

// restart starts the next attempt of a rollout that the server has forgotten.
func (t *Trainer) restart(r *rollout) {
	t.mutex.Lock()
	current := t.rollouts[r.request.RolloutId] == r && !isClosed(r.result.done)
	if current {
		r.leave()
		r = newRollout(r.request, r.request.Attempt+1, r.secret, r.result)
		t.rollouts[r.request.RolloutId] = r
	}
	t.mutex.Unlock()
	if current {
		t.link.start(r)
	}
}

// fail ends all rollouts with an error. No other rollout can start.
func (t *Trainer) fail(err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.err == nil {
		t.err = err
	}
	for _, r := range t.rollouts {
		t.end(r, nil, err)
	}
}

// find returns an attempt, or the status with which a trainer refuses another one. The caller holds the mutex.
func (t *Trainer) find(id string, attempt uint32, unknown codes.Code) (*rollout, error) {
	if attempt == 0 {
		attempt = 1
	}
	r := t.rollouts[id]
	if r == nil || attempt > r.request.Attempt {
		return nil, status.Errorf(unknown, "attempt %d of rollout %s was not started here", attempt, id)
	}
	if newest := r.request.Attempt; attempt < newest {
		return nil, refusal(codes.Aborted, "ATTEMPT_SUPERSEDED", "the rollout has a higher attempt",
			&pb.CurrentAttempt{RolloutId: id, Attempt: newest})
	}
	return r, nil
}

// record keeps an outcome and returns its receipt.
func (t *Trainer) record(reported *pb.RolloutOutcome) (pb.Receipt, error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	r, err := t.find(reported.GetRolloutId(), reported.GetAttempt(), codes.InvalidArgument)
	if err != nil {
		return 0, err
	}
	if !isClosed(r.result.done) {
		outcome := r.assemble(reported)
		if t.config.OnOutcome != nil {
			t.config.OnOutcome(outcome)
		}
		t.end(r, outcome, nil)
		return pb.Receipt_RECEIPT_RECORDED, nil
	}
	if recorded := r.result.outcome; recorded == nil {
		return 0, status.Error(codes.Unavailable, "the trainer no longer waits for the rollout")
	} else if recorded.ResultId == reported.ResultId {
		return pb.Receipt_RECEIPT_ALREADY_RECORDED, nil
	}
	return pb.Receipt_RECEIPT_CONFLICT, nil
}

func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

func randomID() string {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		panic(err)
	}
	return hex.EncodeToString(secret[:])
}
