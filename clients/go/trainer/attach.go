package trainer

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
	"osmosis/wire"
)

const maxOpenChats = 256

// stream is one stream. Only the goroutine of attach uses it.
type stream struct {
	*Trainer
	call      pb.RolloutService_AttachClient
	limits    *pb.Limits                    // nil before the server's hello
	window    int                           // the number of rollouts that may be open
	open      map[wire.Name]*rollout        // Init sent, no outcome yet; over all streams
	asked     map[wire.Name]*rollout        // Init not answered
	chats     map[wire.Name]*pb.ChatRequest // open chats
	actions   chan func()                   // what other goroutines want done
	heartbeat *time.Ticker                  // from the hello on
}

// attach opens streams, one after the other, until the trainer leaves.
func (t *Trainer) attach() {
	defer t.streams.Done()
	hello := &pb.TrainerHello{AttachmentId: wire.NewID(), ProcessId: wire.NewID(), Version: "osmosis-go 1",
		ProtocolMin: 1, ProtocolMax: 1, MaxOpenChats: proto.Uint32(maxOpenChats), History: t.config.History,
		Features: features}
	for open := map[wire.Name]*rollout{}; ; {
		s := &stream{Trainer: t, open: open, asked: map[wire.Name]*rollout{}, actions: make(chan func()),
			chats: map[wire.Name]*pb.ChatRequest{}, heartbeat: time.NewTicker(time.Hour)}
		err := s.follow(hello)
		pause, again := wire.RetryAfter(err)
		if code := status.Code(err); code == codes.Aborted || s.limits == nil && !again && code != codes.Canceled {
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
	silence := time.AfterFunc(45*time.Second, cut) // until the server says hello
	defer s.heartbeat.Stop()
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
			if len(s.chats) > maxOpenChats {
				cut() // the server does not keep to the window
			}
		case r := <-inits:
			s.open[r.name], s.asked[r.name] = r, r
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Init{Init: r.request}})
		case do := <-s.actions:
			do()
		case <-s.heartbeat.C:
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
		if interval := s.limits.GetHeartbeatInterval().AsDuration(); interval > 0 {
			s.heartbeat.Reset(interval)
		}
		again := &pb.OpenRollouts{}
		for key := range s.open {
			again.Rollouts = append(again.Rollouts, &pb.RolloutRef{RolloutId: key.Rollout, Attempt: key.Attempt})
		}
		if len(again.Rollouts) > 0 {
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_OpenRollouts{OpenRollouts: again}})
		}
	case *pb.ServerFrame_InitReply:
		key, refused := wire.Attempt(kind.InitReply), kind.InitReply.GetStatus()
		if refused != nil {
			delete(s.open, key)
		}
		if r := s.asked[key]; r != nil {
			delete(s.asked, key)
			s.answered(r, kind.InitReply.GetResponse().GetTools(), wire.Error(refused))
		}
	case *pb.ServerFrame_UnknownRollouts:
		for _, ref := range kind.UnknownRollouts.Rollouts {
			if r := s.open[wire.Attempt(ref)]; r != nil {
				r.end(errForgotten)
			}
			delete(s.open, wire.Attempt(ref))
		}
	case *pb.ServerFrame_Window:
		s.window = int(kind.Window.MaxOpenRollouts)
	case *pb.ServerFrame_Draining:
		s.window = 0
	case *pb.ServerFrame_Chat:
		if key := wire.Chat(kind.Chat); s.chats[key] == nil { // the server gets one answer
			s.chats[key] = kind.Chat
			go s.answer(kind.Chat)
		}
	case *pb.ServerFrame_AbandonChat:
		for key := range s.chats {
			if key.IsIn(kind.AbandonChat) {
				delete(s.chats, key)
			}
		}
		if kind.AbandonChat.Reason == "SUPERSEDED" {
			delete(s.open, wire.Attempt(kind.AbandonChat))
		}
		s.AbandonChat(s.call.Context(), kind.AbandonChat)
	case *pb.ServerFrame_Complete:
		outcome := kind.Complete.GetOutcome()
		delete(s.open, wire.Attempt(outcome))
		response, err := s.Complete(s.call.Context(), kind.Complete)
		reply := wire.CompleteReply(outcome, response, err)
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_CompleteReply{CompleteReply: reply}})
	case nil:
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_UnknownFrame{UnknownFrame: wire.UnknownFrame(frame)}})
	}
}

// answer answers a chat on the stream that asked. If the stream breaks before that, the server asks again.
func (s *stream) answer(ask *pb.ChatRequest) {
	response, err := s.Chat(s.call.Context(), ask)
	reply := &pb.TrainerFrame_ChatReply{ChatReply: wire.ChatReply(ask, response, err)}
	select {
	case s.actions <- func() {
		if s.chats[wire.Chat(ask)] == ask { // it was not abandoned
			delete(s.chats, wire.Chat(ask))
			s.send(&pb.TrainerFrame{Frame: reply})
		}
	}:
	case <-s.call.Context().Done():
	}
}
