package trainer

import (
	"context"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
)

const (
	maxFrames    = 4096 // of one stream message
	maxBytes     = 1 << 20
	maxRefs      = 1000 // of one OpenRollouts
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// attachment is the transport with streams, one after the other. Trainer.mutex guards its fields.
type attachment struct {
	*Trainer
	conn    *grpc.ClientConn
	ctx     context.Context
	stop    context.CancelFunc
	hello   *pb.TrainerHello
	stream  *stream    // the present one; nil during a break
	window  uint32     // the number of rollouts that may be open
	live    []*rollout // in order of their start
	cancels map[string]*pb.CancelFrame
	problem error         // the end of the newest stream
	ended   chan struct{} // closed when no stream follows
}

func attach(ctx context.Context, t *Trainer, conn *grpc.ClientConn) (transport, error) {
	a := &attachment{Trainer: t, conn: conn, cancels: map[string]*pb.CancelFrame{}, ended: make(chan struct{})}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.hello = &pb.TrainerHello{AttachmentId: randomID(), ProcessId: randomID(), Version: "osmosis-go 1", ProtocolMin: 1,
		ProtocolMax: 1, MaxOpenChats: proto.Uint32(t.config.MaxOpenChats), History: t.config.History, Features: features}
	attached, refused := make(chan struct{}), make(chan error, 1)
	go a.run(attached, refused)
	select {
	case <-attached:
		return a, nil
	case err := <-refused:
		return nil, err
	case <-ctx.Done():
		a.stop()
		a.mutex.Lock()
		defer a.mutex.Unlock()
		return nil, fmt.Errorf("%s cannot be reached (%v): %w", t.config.Target, a.problem, ctx.Err())
	}
}

// run opens a stream after each break, with the same attachment id.
func (a *attachment) run(attached chan struct{}, refused chan error) {
	defer close(a.ended)
	pause := firstPause
	for a.ctx.Err() == nil {
		s := &stream{attachment: a, out: make(chan *pb.TrainerFrame, 1024), open: map[chatKey]bool{}}
		err := s.follow(func() {
			pause = firstPause
			if !isClosed(attached) {
				close(attached)
			}
		})
		a.mutex.Lock()
		a.problem = err
		a.mutex.Unlock()
		switch code := status.Code(err); {
		case a.ctx.Err() != nil || err == io.EOF || code == codes.Unavailable || code == codes.ResourceExhausted:
		case code == codes.Aborted || s.silence == nil: // another stream has this id; or the hello was refused
			a.fail(err)
			refused <- err
			return
		}
		select {
		case <-time.After(pause):
		case <-a.ctx.Done():
		}
		if pause *= 2; pause > longestPause {
			pause = longestPause
		}
	}
}

func (a *attachment) start(r *rollout) {
	a.mutex.Lock()
	a.live = append(a.live, r)
	a.mutex.Unlock()
	a.sendInits()
}

// sendInits sends Inits as far as the server's window allows. An Init is open until the outcome arrives.
func (a *attachment) sendInits() {
	a.mutex.Lock()
	s, open, live := a.stream, uint32(0), a.live[:0]
	for _, r := range a.live {
		if a.rollouts[r.request.RolloutId] == r && !isClosed(r.result.done) {
			live = append(live, r)
			if r.sent {
				open++
			}
		}
	}
	a.live = live
	var frames []*pb.TrainerFrame
	for _, r := range live {
		if s != nil && !r.sent && open < a.window {
			r.sent = true
			open++
			frames = append(frames, &pb.TrainerFrame{Frame: &pb.TrainerFrame_Init{Init: r.request}})
		}
	}
	a.mutex.Unlock()
	s.send(frames...)
}

func (a *attachment) cancel(r *rollout) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if r = a.rollouts[r.request.RolloutId]; !r.sent {
		a.end(r, nil, context.Canceled) // the server does not have it
		return
	}
	frame := &pb.CancelFrame{Id: randomID(), Request: cancelRequest(r)}
	a.cancels[frame.Id] = frame
	go a.stream.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Cancel{Cancel: frame}})
}

// close says goodbye, and waits until the server has closed the stream or ctx ends.
func (a *attachment) close(ctx context.Context) {
	a.mutex.Lock()
	s := a.stream
	a.mutex.Unlock()
	if s != nil {
		s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Goodbye{Goodbye: &pb.Goodbye{}}})
		wait(ctx, s.ctx.Done())
	}
	a.stop()
	<-a.ended
	a.conn.Close()
}

// SetMaxOpenChats changes the number of chats that the server may have open over a stream. 0 pauses.
func (t *Trainer) SetMaxOpenChats(n uint32) {
	a, is := t.link.(*attachment)
	if !is {
		return
	}
	a.mutex.Lock()
	a.hello.MaxOpenChats = proto.Uint32(n)
	s := a.stream
	if s != nil && s.largest < n {
		s.largest = n
	}
	a.mutex.Unlock()
	s.send(&pb.TrainerFrame{Frame: &pb.TrainerFrame_Window{Window: &pb.TrainerWindow{MaxOpenChats: n}}})
}

// take begins to use a stream. It sends what the server may not have.
func (a *attachment) take(s *stream, hello *pb.ServerHello) {
	a.mutex.Lock()
	a.stream, a.hello.JournalId, a.window = s, hello.JournalId, 1024
	if hello.MaxOpenRollouts != nil {
		a.window = *hello.MaxOpenRollouts
	}
	var refs []*pb.RolloutRef
	for _, r := range a.live {
		if r.sent = isClosed(r.accepted) && !isClosed(r.result.done); r.sent {
			refs = append(refs, &pb.RolloutRef{RolloutId: r.request.RolloutId, Attempt: r.request.Attempt})
		}
	}
	var frames []*pb.TrainerFrame
	for n := maxRefs; len(refs) > 0; refs = refs[n:] {
		if n > len(refs) {
			n = len(refs)
		}
		list := &pb.OpenRollouts{Rollouts: refs[:n]}
		frames = append(frames, &pb.TrainerFrame{Frame: &pb.TrainerFrame_OpenRollouts{OpenRollouts: list}})
	}
	for _, frame := range a.cancels {
		frames = append(frames, &pb.TrainerFrame{Frame: &pb.TrainerFrame_Cancel{Cancel: frame}})
	}
	a.mutex.Unlock()
	s.send(frames...)
	a.sendInits()
}

func (a *attachment) setWindow(n uint32) {
	a.mutex.Lock()
	a.window = n
	a.mutex.Unlock()
	a.sendInits()
}

func (a *attachment) initAnswered(reply *pb.InitReply) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	r, err := a.find(reply.RolloutId, reply.Attempt, codes.NotFound)
	if err != nil {
		return
	}
	if reply.GetStatus() == nil {
		r.accept(reply.GetResponse().GetTools())
	} else if pause, again := retryAfter(statusError(reply.GetStatus())); again { // it keeps its slot until then
		time.AfterFunc(pause, func() {
			a.mutex.Lock()
			r.sent = isClosed(r.accepted)
			a.mutex.Unlock()
			a.sendInits()
		})
	} else {
		a.end(r, nil, statusError(reply.GetStatus()))
	}
}
