package trainer

import (
	"context"
	"crypto/subtle"
	"net"
	"strings"
	"time"

	"github.com/golang/protobuf/ptypes/any"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	pb "osmosis/rollout/v1"
)

const (
	callTimeout   = 30 * time.Second
	checkInterval = 10 * time.Second // between two questions whether the server still has a rollout
)

// callbacks is the transport with one call for each message: the trainer calls the server, and the server the trainer.
type callbacks struct {
	pb.UnimplementedTrainerServiceServer
	*Trainer
	conn    *grpc.ClientConn
	address *pb.Callback
	server  *grpc.Server
}

func listen(ctx context.Context, t *Trainer, conn *grpc.ClientConn) (transport, error) {
	info, err := t.client.GetServerInfo(ctx, &pb.GetServerInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", t.config.Listen)
	if err != nil {
		return nil, err
	}
	address := &pb.Callback{Target: t.config.Advertise, History: t.config.History, RunId: randomID(), Protocol: 1,
		Features: features}
	if address.Target == "" {
		address.Target = listener.Addr().String()
	}
	for _, feature := range info.Features {
		address.OutcomeByReference = address.OutcomeByReference || feature == "outcome_by_reference"
	}
	sizes := []grpc.ServerOption{grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxSendMsgSize(maxMessageBytes)}
	c := &callbacks{Trainer: t, conn: conn, address: address, server: grpc.NewServer(sizes...)}
	pb.RegisterTrainerServiceServer(c.server, c)
	go c.server.Serve(listener)
	return c, nil
}

func (c *callbacks) start(r *rollout) { go c.follow(r) }

// follow sends the Init until it is answered. Then it asks from time to time whether the server still has the rollout.
func (c *callbacks) follow(r *rollout) {
	init := proto.Clone(r.request).(*pb.InitRequest)
	init.Callback = proto.Clone(c.address).(*pb.Callback)
	init.Callback.Credential = r.secret
	for r.ctx.Err() == nil {
		pause, again := checkInterval, false
		if !isClosed(r.accepted) {
			ctx, done := context.WithTimeout(r.ctx, callTimeout)
			response, err := c.client.Init(ctx, init)
			done()
			c.mutex.Lock()
			if err == nil {
				r.accept(response.Tools)
			} else if pause, again = retryAfter(err); !again {
				c.end(r, nil, err)
			}
			c.mutex.Unlock()
		} else {
			ctx, done := context.WithTimeout(r.ctx, callTimeout)
			which := &pb.GetRolloutRequest{RolloutId: init.RolloutId, Attempt: init.Attempt}
			if _, err := c.client.GetRollout(ctx, which); status.Code(err) == codes.NotFound {
				c.restart(r)
			}
			done()
		}
		select {
		case <-time.After(pause):
		case <-r.ctx.Done():
		}
	}
}

func (c *callbacks) cancel(r *rollout) {
	ctx, done := context.WithTimeout(context.Background(), callTimeout)
	defer done()
	c.client.Cancel(ctx, cancelRequest(r), grpc.WaitForReady(true))
}

func (c *callbacks) close(ctx context.Context) {
	stopped := make(chan struct{})
	go func() {
		c.server.GracefulStop() // answers that wait are sent
		close(stopped)
	}()
	wait(ctx, stopped)
	c.server.Stop()
	c.conn.Close()
}

// check refuses a call without the credential of the rollout.
func (c *callbacks) check(ctx context.Context, id string) error {
	metadata, _ := metadata.FromIncomingContext(ctx)
	shown := strings.Join(metadata.Get("authorization"), " ")
	c.mutex.Lock()
	defer c.mutex.Unlock()
	known := false
	for _, r := range c.rollouts {
		if subtle.ConstantTimeCompare([]byte(shown), []byte("Bearer "+r.secret)) == 1 {
			if r.request.RolloutId == id {
				return nil
			}
			known = true
		}
	}
	if known {
		return refusal(codes.PermissionDenied, "PERMISSION_DENIED", "the credential is of another rollout", nil)
	}
	return refusal(codes.Unauthenticated, "UNAUTHENTICATED", "the credential is not of this trainer", nil)
}

// Chat implements TrainerService.
func (c *callbacks) Chat(ctx context.Context, ask *pb.ChatRequest) (*pb.ChatResponse, error) {
	if err := c.check(ctx, ask.RolloutId); err != nil {
		return nil, err
	}
	return c.answer(ctx, ask)
}

// AbandonChat implements TrainerService.
func (c *callbacks) AbandonChat(ctx context.Context, ask *pb.AbandonChatRequest) (*pb.AbandonChatResponse, error) {
	if err := c.check(ctx, ask.RolloutId); err != nil {
		return nil, err
	}
	c.abandon(ask)
	return &pb.AbandonChatResponse{}, nil
}

// Complete implements TrainerService.
func (c *callbacks) Complete(ctx context.Context, request *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	if err := c.check(ctx, request.GetOutcome().GetRolloutId()); err != nil {
		return nil, err
	}
	receipt, err := c.record(request.GetOutcome())
	return &pb.CompleteResponse{Receipt: receipt}, err
}

func cancelRequest(r *rollout) *pb.CancelRequest {
	return &pb.CancelRequest{Attempt: r.request.Attempt, Reason: "the trainer no longer wants it",
		Selection: &pb.CancelRequest_RolloutId{RolloutId: r.request.RolloutId}}
}

// retryAfter returns whether a refused Init may be sent again, and after which pause.
func retryAfter(err error) (time.Duration, bool) {
	refused := status.Convert(err)
	for _, detail := range refused.Details() {
		if retry, is := detail.(*errdetails.RetryInfo); is {
			return time.Duration(retry.GetRetryDelay().GetSeconds())*time.Second + time.Duration(retry.GetRetryDelay().GetNanos()), true
		}
	}
	code := refused.Code()
	return time.Second, code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.DeadlineExceeded
}

func statusValue(err error) *pb.Status {
	refused := status.Convert(err).Proto()
	value := &pb.Status{Code: refused.Code, Message: refused.Message}
	for _, detail := range refused.Details {
		value.Details = append(value.Details, &anypb.Any{TypeUrl: detail.TypeUrl, Value: detail.Value})
	}
	return value
}

func statusError(refused *pb.Status) error {
	value := &spb.Status{Code: refused.GetCode(), Message: refused.GetMessage()}
	for _, detail := range refused.GetDetails() {
		value.Details = append(value.Details, &any.Any{TypeUrl: detail.TypeUrl, Value: detail.Value})
	}
	return status.ErrorProto(value)
}
