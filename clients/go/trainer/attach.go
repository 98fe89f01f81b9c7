package trainer

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
	"osmosis/wire"
)

const (
	maxOpenChats = 256
	maxSilence   = 45 * time.Second       // until the server's hello has come
	pause        = 500 * time.Millisecond // between two streams
)

// stream is one stream. Only the goroutine of attach uses it.
type stream struct {
	*Trainer
	call    pb.RolloutService_AttachClient
	limits  *pb.Limits             // nil before the server's hello
	window  int                    // the number of rollouts that may be open
	open    map[name]*rollout      // those whose Init was sent and whose outcome has not come, also over earlier streams
	asked   map[name]*rollout      // those whose Init is not answered
	chats   map[name]*pb.ChatReply // open chats
	replies chan *pb.ChatReply
}

// attach opens streams, one after the other, until the trainer leaves.
func (t *Trainer) attach() {
	defer close(t.left)
	hello := &pb.TrainerHello{AttachmentId: randomID(), ProcessId: randomID(), Version: "osmosis-go 1",
		ProtocolMin: 1, ProtocolMax: 1, MaxOpenChats: proto.Uint32(maxOpenChats), History: t.config.History,
		Features: features}
	for open := map[name]*rollout{}; ; {
		s := &stream{Trainer: t, open: open, asked: map[name]*rollout{}, chats: map[name]*pb.ChatReply{},
			replies: make(chan *pb.ChatReply)}
		err := s.follow(hello)
		code := status.Code(err)
		temporary := code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.Canceled
		if code == codes.Aborted || s.limits == nil && !temporary {
			t.fail(err) // another stream has the attachment id, or the hello was refused
			return
		}
		for key, r := range s.asked { // on the next stream
			delete(open, key)
			go t.send(r)
		}
		select {
		case <-t.leaving:
			return
		case <-time.After(pause):
		}
	}
}

// follow opens the stream and follows it to its end.
func (s *stream) follow(hello *pb.TrainerHello) (err error) {
	ctx, cut := context.WithCancel(context.Background())
	defer cut()
	silence, heartbeat := time.AfterFunc(maxSilence, cut), time.NewTicker(maxSilence)
	defer silence.Stop()
	defer heartbeat.Stop()
	if s.call, err = s.client.Attach(ctx, grpc.MaxCallRecvMsgSize(MaxMessageBytes)); err != nil {
		return err
	}
	s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Hello{Hello: hello}})
	messages, broken, leaving := make(chan *pb.AttachResponse), make(chan error, 1), s.leaving
	go func() {
		message, err := s.call.Recv()
		for ; err == nil; message, err = s.call.Recv() {
			messages <- message
		}
		broken <- err
	}()
	for {
		inits := s.inits
		if len(s.open) >= s.window {
			inits = nil // they wait
		}
		select {
		case message := <-messages:
			for _, frame := range message.Frames {
				s.handle(frame)
			}
			silence.Reset(s.limits.GetHeartbeatTimeout().AsDuration())
			heartbeat.Reset(s.limits.GetHeartbeatInterval().AsDuration())
		case r := <-inits:
			s.open[r.name], s.asked[r.name] = r, r
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Init{Init: r.request}})
		case reply := <-s.replies:
			key := name{reply.RolloutId, reply.Attempt, reply.Sample, reply.ChatNumber}
			if s.chats[key] == reply { // not abandoned
				delete(s.chats, key)
				s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_ChatReply{ChatReply: reply}})
			}
		case <-heartbeat.C:
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Heartbeat{Heartbeat: &pb.Heartbeat{}}})
		case <-leaving:
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Goodbye{Goodbye: &pb.Goodbye{}}})
			s.call.CloseSend()
			leaving, s.window = nil, 0
		case err := <-broken:
			return err
		}
	}
}

// send sends a frame. If that fails, Recv has the status.
func (s *stream) send(frame *pb.TrainerFrame) {
	s.call.Send(&pb.AttachRequest{Frames: []*pb.TrainerFrame{frame}})
}

func (s *stream) handle(frame *pb.ServerFrame) {
	switch kind := frame.Frame.(type) {
	case *pb.ServerFrame_Hello:
		s.limits, s.window = kind.Hello.Limits, 1024
		if kind.Hello.MaxOpenRollouts != nil {
			s.window = int(*kind.Hello.MaxOpenRollouts)
		}
		again := &pb.OpenRollouts{}
		for key := range s.open {
			again.Rollouts = append(again.Rollouts, &pb.RolloutRef{RolloutId: key.rollout, Attempt: key.attempt})
		}
		if len(again.Rollouts) > 0 {
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_OpenRollouts{OpenRollouts: again}})
		}
	case *pb.ServerFrame_InitReply:
		key, refused := name{rollout: kind.InitReply.RolloutId, attempt: kind.InitReply.Attempt}, kind.InitReply.GetStatus()
		if refused != nil {
			delete(s.open, key)
		}
		if r := s.asked[key]; r != nil {
			delete(s.asked, key)
			s.answered(r, kind.InitReply.GetResponse().GetTools(), wire.Error(refused))
		}
	case *pb.ServerFrame_UnknownRollouts:
		for _, ref := range kind.UnknownRollouts.Rollouts {
			key := name{rollout: ref.RolloutId, attempt: ref.Attempt}
			if r := s.open[key]; r != nil {
				r.end(errForgotten)
			}
			delete(s.open, key)
		}
	case *pb.ServerFrame_Window:
		s.window = int(kind.Window.MaxOpenRollouts)
	case *pb.ServerFrame_Draining:
		s.window = 0
	case *pb.ServerFrame_Chat:
		s.answer(kind.Chat)
	case *pb.ServerFrame_AbandonChat:
		for key := range s.chats {
			if key.isIn(kind.AbandonChat) {
				delete(s.chats, key)
			}
		}
		if kind.AbandonChat.Reason == "SUPERSEDED" {
			delete(s.open, name{rollout: kind.AbandonChat.RolloutId, attempt: kind.AbandonChat.Attempt})
		}
		s.AbandonChat(s.call.Context(), kind.AbandonChat)
	case *pb.ServerFrame_Complete:
		of := kind.Complete.GetOutcome()
		delete(s.open, name{rollout: of.GetRolloutId(), attempt: of.GetAttempt()})
		reply := &pb.CompleteReply{RolloutId: of.GetRolloutId(), Attempt: of.GetAttempt(), ResultId: of.GetResultId()}
		response, err := s.Complete(s.call.Context(), kind.Complete)
		reply.Result = &pb.CompleteReply_Receipt{Receipt: response.GetReceipt()}
		if err != nil {
			reply.Result = &pb.CompleteReply_Status{Status: wire.Status(err)}
		}
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_CompleteReply{CompleteReply: reply}})
	case nil:
		number, _, _ := protowire.ConsumeTag(frame.ProtoReflect().GetUnknown())
		unknown := &pb.UnknownFrame{FrameNumber: uint32(number)}
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_UnknownFrame{UnknownFrame: unknown}})
	}
}

// answer answers a chat on the stream that asked. If the stream breaks before that, the server asks again.
func (s *stream) answer(ask *pb.ChatRequest) {
	reply := &pb.ChatReply{RolloutId: ask.RolloutId, Attempt: ask.Attempt, Sample: ask.Sample, ChatNumber: ask.ChatNumber}
	key := name{ask.RolloutId, ask.Attempt, ask.Sample, ask.ChatNumber}
	if s.chats[key] != nil {
		return // the server gets one answer
	}
	s.chats[key] = reply
	go func() {
		response, err := s.Chat(s.call.Context(), ask)
		reply.Result = &pb.ChatReply_Response{Response: response}
		if err != nil {
			reply.Result = &pb.ChatReply_Status{Status: wire.Status(err)}
		}
		select {
		case s.replies <- reply:
		case <-s.call.Context().Done():
		}
	}()
}
