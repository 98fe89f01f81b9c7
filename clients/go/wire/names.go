package wire

import (
	"crypto/rand"
	"fmt"

	pb "osmosis/rollout/v1"
)

// Name names a chat, or without a sample an attempt of a rollout.
type Name struct {
	Rollout string
	Attempt uint32
	Sample  string
	Number  uint32
}

type ofAttempt interface {
	GetRolloutId() string
	GetAttempt() uint32
}

type ofChat interface {
	ofAttempt
	GetSample() string
	GetChatNumber() uint32
}

// Attempt returns the name of the attempt that a message is about.
func Attempt(of ofAttempt) Name {
	return Name{Rollout: of.GetRolloutId(), Attempt: of.GetAttempt()}
}

// Chat returns the name of the chat that a message is about.
func Chat(of ofChat) Name {
	return Name{of.GetRolloutId(), of.GetAttempt(), of.GetSample(), of.GetChatNumber()}
}

// IsIn returns whether an AbandonChat names the chat. Without a sample it names all, without a number all of the sample.
func (n Name) IsIn(ask *pb.AbandonChatRequest) bool {
	return n.Rollout == ask.RolloutId && n.Attempt == ask.Attempt && (ask.Sample == "" || ask.Sample == n.Sample) &&
		(ask.ChatNumber == 0 || ask.ChatNumber == n.Number)
}

// NewID returns an id that is hard to guess.
func NewID() string {
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x", secret)
}
