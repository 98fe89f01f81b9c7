package trainer

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "osmosis/rollout/v1"
)

// identity is the same for equal chats, whether their histories come in full or as deltas.
func (c *Chat) identity() [sha256.Size]byte {
	purpose := c.Purpose
	if purpose == pb.ChatPurpose_CHAT_PURPOSE_UNSPECIFIED {
		purpose = pb.ChatPurpose_CHAT_PURPOSE_POLICY
	}
	sampling := c.Sampling
	if sampling == nil {
		sampling = &pb.SamplingParams{}
	}
	rest := canonical(&pb.ChatRequest{Tools: &pb.Tools{Tools: c.Tools}, Sampling: sampling, Purpose: purpose})
	return sha256.Sum256(append(c.history[:], rest...))
}

// extend returns the digest of a history with further messages.
func extend(history [sha256.Size]byte, messages []*pb.Message) [sha256.Size]byte {
	for _, message := range messages {
		history = sha256.Sum256(append(history[:], canonical(message)...))
	}
	return history
}

// canonical returns a text that is the same for equal messages. JSON text within them is compared by value.
func canonical(message proto.Message) []byte {
	text, _ := protojson.Marshal(message)
	canonical, _ := json.Marshal(oneSpelling(parse(string(text)), true))
	return canonical
}

// parse returns the value of a JSON text, and any other text as it is.
func parse(text string) (value interface{}) {
	decoder := json.NewDecoder(bytes.NewBufferString(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil || decoder.More() {
		return text
	}
	return value
}

// oneSpelling gives numbers one spelling, and replaces JSON text in the fields of a message by its value.
func oneSpelling(value interface{}, isMessage bool) interface{} {
	switch known := value.(type) {
	case map[string]interface{}:
		for key, item := range known {
			if text, is := item.(string); is && isMessage && (key == "extraJson" || key == "parametersJson") {
				known[key] = oneSpelling(parse(text), false)
			} else {
				known[key] = oneSpelling(item, isMessage)
			}
		}
		if extra, is := known["extraJson"].(map[string]interface{}); isMessage && is && len(extra) == 0 {
			delete(known, "extraJson") // {} means none
		}
	case []interface{}:
		for i, item := range known {
			known[i] = oneSpelling(item, isMessage)
		}
	case json.Number:
		if whole, is := new(big.Int).SetString(known.String(), 10); is {
			return json.Number(whole.String())
		}
		if number, err := strconv.ParseFloat(known.String(), 64); err == nil {
			return json.Number(big.NewFloat(number+0).Text('f', -1)) // -0 + 0 is 0
		}
	}
	return value
}
