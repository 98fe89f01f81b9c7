package trainer

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
)

// chatKey names a chat of an attachment.
type chatKey struct {
	rollout string
	attempt uint32
	name    name
}

// stream is one stream of an attachment.
type stream struct {
	*attachment
	ctx     context.Context
	call    pb.RolloutService_AttachClient
	out     chan *pb.TrainerFrame // bounded: a trainer stops reading while its own answers wait
	silence *time.Timer           // ends the stream; nil before the server's hello
	open    map[chatKey]bool      // chats; Trainer.mutex guards it
	largest uint32                // the largest window of chats
}

// follow opens the stream and follows it to its end. It calls greeted after the hellos.
func (s *stream) follow(greeted func()) (err error) {
	ctx, cut := context.WithCancel(s.attachment.ctx)
	defer cut()
	s.ctx = ctx
	greeting := time.AfterFunc(45*time.Second, cut)
	defer greeting.Stop()
	if s.call, err = s.client.Attach(ctx); err != nil {
		return err
	}
	s.mutex.Lock()
	hello := proto.Clone(s.hello).(*pb.TrainerHello)
	s.mutex.Unlock()
	s.largest = hello.GetMaxOpenChats()
	s.call.Send(&pb.AttachRequest{Frames: []*pb.TrainerFrame{{Frame: &pb.TrainerFrame_Hello{Hello: hello}}}})
	message, err := s.call.Recv()
	if err != nil {
		return err
	}
	if len(message.Frames) == 0 || message.Frames[0].GetHello() == nil {
		return status.Error(codes.InvalidArgument, "the first frame of the server is no hello")
	}
	server := message.Frames[0].GetHello()
	timeout := server.GetLimits().GetHeartbeatTimeout().AsDuration()
	s.silence = time.AfterFunc(timeout, cut)
	defer s.silence.Stop()
	greeting.Stop()
	go s.write(server.GetLimits().GetHeartbeatInterval().AsDuration())
	s.take(s, server)
	defer func() {
		s.mutex.Lock()
		s.attachment.stream = nil
		s.mutex.Unlock()
	}()
	greeted()
	for frames := message.Frames[1:]; ; frames = message.Frames {
		for _, frame := range frames {
			if err := s.handle(frame); err != nil {
				return err
			}
		}
		if message, err = s.call.Recv(); err != nil {
			return err
		}
		s.silence.Reset(timeout)
	}
}

// send sends frames. They are lost if the stream has ended: the next stream begins with what was not answered.
func (s *stream) send(frames ...*pb.TrainerFrame) {
	for _, frame := range frames {
		if s == nil {
			return
		}
		select {
		case s.out <- frame:
		case <-s.ctx.Done():
		}
	}
}

// write writes frames up to Goodbye, and a heartbeat after an interval without a frame.
func (s *stream) write(interval time.Duration) {
	for s.ctx.Err() == nil {
		frame := &pb.TrainerFrame{Frame: &pb.TrainerFrame_Heartbeat{Heartbeat: &pb.Heartbeat{}}}
		select {
		case frame = <-s.out:
		case <-time.After(interval):
		case <-s.ctx.Done():
		}
		frames := []*pb.TrainerFrame{frame}
		for size := proto.Size(frame); size < maxBytes && len(frames) < maxFrames && len(s.out) > 0; size += proto.Size(frame) {
			frame = <-s.out
			frames = append(frames, frame)
		}
		if s.call.Send(&pb.AttachRequest{Frames: frames}) != nil {
			return // Recv has the status
		}
		if frame.GetGoodbye() != nil {
			s.call.CloseSend()
			return
		}
	}
}

// handle handles a frame. An error ends the stream.
func (s *stream) handle(frame *pb.ServerFrame) error {
	switch kind := frame.Frame.(type) {
	case *pb.ServerFrame_Chat:
		return s.chat(kind.Chat)
	case *pb.ServerFrame_AbandonChat:
		s.mutex.Lock()
		for key := range s.open {
			if key.rollout == kind.AbandonChat.RolloutId && key.attempt == kind.AbandonChat.Attempt && key.name.isIn(kind.AbandonChat) {
				delete(s.open, key)
			}
		}
		s.mutex.Unlock()
		s.abandon(kind.AbandonChat)
	case *pb.ServerFrame_Complete:
		outcome := kind.Complete.GetOutcome()
		reply := &pb.CompleteReply{RolloutId: outcome.GetRolloutId(), Attempt: outcome.GetAttempt(), ResultId: outcome.GetResultId()}
		if receipt, err := s.record(outcome); err != nil {
			reply.Result = &pb.CompleteReply_Status{Status: statusValue(err)}
		} else {
			reply.Result = &pb.CompleteReply_Receipt{Receipt: receipt}
		}
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_CompleteReply{CompleteReply: reply}})
	case *pb.ServerFrame_InitReply:
		s.initAnswered(kind.InitReply)
	case *pb.ServerFrame_UnknownRollouts:
		for _, ref := range kind.UnknownRollouts.Rollouts {
			s.mutex.Lock()
			r, err := s.find(ref.RolloutId, ref.Attempt, codes.NotFound)
			s.mutex.Unlock()
			if err == nil {
				s.restart(r)
			}
		}
	case *pb.ServerFrame_Window:
		s.setWindow(kind.Window.MaxOpenRollouts)
	case *pb.ServerFrame_Draining:
		s.setWindow(0)
	case *pb.ServerFrame_CancelReply:
		s.mutex.Lock()
		delete(s.cancels, kind.CancelReply.Id)
		s.mutex.Unlock()
	case nil:
		if number, _, n := protowire.ConsumeTag(frame.ProtoReflect().GetUnknown()); n > 0 {
			unknown := &pb.UnknownFrame{FrameNumber: uint32(number)}
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_UnknownFrame{UnknownFrame: unknown}})
		}
	}
	s.sendInits()
	return nil
}

// chat answers a chat on the stream that asked. If the stream breaks before that, the server asks again.
func (s *stream) chat(ask *pb.ChatRequest) error {
	key := chatKey{ask.RolloutId, ask.Attempt, name{ask.Sample, ask.ChatNumber}}
	s.mutex.Lock()
	again, open, largest := s.open[key], uint32(len(s.open)), s.largest
	beyond := !again && open >= s.hello.GetMaxOpenChats()
	if !beyond {
		s.open[key] = true
	}
	s.mutex.Unlock()
	if again {
		return nil // the server gets one answer
	}
	exceeded := refusal(codes.ResourceExhausted, "WINDOW_EXCEEDED", "a chat beyond the window", nil)
	if beyond && open >= largest {
		return exceeded
	}
	go func() {
		reply := &pb.ChatReply{RolloutId: ask.RolloutId, Attempt: ask.Attempt, Sample: ask.Sample, ChatNumber: ask.ChatNumber}
		response, err := (*pb.ChatResponse)(nil), exceeded
		if !beyond {
			response, err = s.answer(s.ctx, ask)
		}
		reply.Result = &pb.ChatReply_Response{Response: response}
		if err != nil {
			reply.Result = &pb.ChatReply_Status{Status: statusValue(err)}
		}
		s.mutex.Lock()
		wanted := beyond || s.open[key] // not abandoned
		delete(s.open, key)
		s.mutex.Unlock()
		if wanted {
			s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_ChatReply{ChatReply: reply}})
		}
	}()
	return nil
}
