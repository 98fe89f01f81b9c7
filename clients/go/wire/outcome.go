package wire

import pb "osmosis/rollout/v1"

// Answered is a chat with its reply.
type Answered struct {
	// Messages is the whole history.
	Messages []*pb.Message
	// Reply is nil before it has been sampled.
	Reply *pb.ChatResponse
}

// IDs returns the tokens of the prompt and the reply.
func (a *Answered) IDs() []uint32 {
	return append(append([]uint32{}, a.Reply.GetPrompt().GetIds()...), a.Reply.GetTokens().GetIds()...)
}

// Conversation returns the history, the reply, and further messages.
func (a *Answered) Conversation(more []*pb.Message) []*pb.Message {
	return append(append(append([]*pb.Message{}, a.Messages...), a.Reply.GetMessage()), more...)
}

// FillIn adds the messages and tokens that a sample leaves out because the trainer has them. `chats` returns a chat of
// the sample by its number, or nil.
func FillIn(sample *pb.Sample, chats func(number uint32) *Answered) {
	if chat := chats(sample.PrefixChat); chat != nil {
		sample.Messages, sample.PrefixChat = chat.Conversation(sample.Messages), 0
	}
	for _, segment := range sample.Segments {
		if len(segment.Ids) > 0 {
			continue
		}
		for _, number := range segment.Chats {
			chat := chats(number)
			if chat == nil {
				sample.Segments, sample.Trainable = nil, false
				sample.NotTrainableReason = "a segment names a chat that was not answered here"
				return
			}
			segment.Ids = chat.IDs() // the newest chat has the tokens of all
			segment.Logprobs = append(segment.Logprobs, chat.Reply.GetTokens().GetLogprobs()...)
		}
	}
}

// Mask returns the loss mask of a segment: for each token whether the policy sampled it.
func Mask(segment *pb.Segment) []bool {
	mask := []bool{}
	for i, run := range segment.MaskRuns { // zeros first
		for ; run > 0; run-- {
			mask = append(mask, i%2 == 1)
		}
	}
	return mask
}
