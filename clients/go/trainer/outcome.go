package trainer

import (
	"fmt"

	pb "osmosis/rollout/v1"
)

// Outcome is an outcome with whole samples: what the server left out comes from the chats that this trainer answered.
type Outcome struct {
	*pb.RolloutOutcome
	Samples []*Sample
}

// Sample is one conversation. Train on its segments if Trainable, and unless Train is false.
type Sample struct {
	*pb.Sample
	Messages           []*pb.Message
	Segments           []*Segment
	Trainable          bool
	NotTrainableReason string // empty if Trainable
}

// Segment is a stretch of a conversation.
type Segment struct {
	*pb.Segment
	IDs      []uint32  // all tokens
	Mask     []bool    // for each token: whether the policy sampled it
	Logprobs []float32 // one for each token with mask true
}

// assemble fills in an outcome. The caller holds the mutex.
func (r *rollout) assemble(reported *pb.RolloutOutcome) *Outcome {
	outcome := &Outcome{RolloutOutcome: reported}
	for _, from := range reported.Samples {
		sample := &Sample{Sample: from, Messages: from.Messages, Trainable: from.Trainable,
			NotTrainableReason: from.NotTrainableReason}
		if prefix := r.chats[name{from.Name, from.PrefixChat}]; prefix != nil && prefix.reply != nil {
			sample.Messages = prefix.conversation(from.Messages)
		}
		for _, segment := range from.Segments {
			whole, err := r.fill(segment, from.Name)
			if err != nil {
				sample.Segments, sample.Trainable, sample.NotTrainableReason = nil, false, err.Error()
				break
			}
			sample.Segments = append(sample.Segments, whole)
		}
		outcome.Samples = append(outcome.Samples, sample)
	}
	return outcome
}

func (r *rollout) fill(from *pb.Segment, sample string) (*Segment, error) {
	segment := &Segment{Segment: from, IDs: from.Ids, Logprobs: from.Logprobs}
	for i, run := range from.MaskRuns { // zeros first
		for ; run > 0; run-- {
			segment.Mask = append(segment.Mask, i%2 == 1)
		}
	}
	if len(from.Ids) == 0 { // by reference: the newest chat has the tokens of all
		for _, number := range from.Chats {
			chat := r.chats[name{sample, number}]
			if chat == nil || chat.reply == nil {
				return nil, fmt.Errorf("a segment names chat %d, which was not answered here", number)
			}
			segment.IDs, segment.Logprobs = chat.ids, append(segment.Logprobs, chat.reply.Logprobs...)
		}
	}
	if len(segment.IDs) != len(segment.Mask) {
		return nil, fmt.Errorf("a segment has %d tokens and a mask for %d", len(segment.IDs), len(segment.Mask))
	}
	return segment, nil
}
