package wire

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// Equal returns whether two messages are equal. JSON text in their fields is compared by value: 1 and 1.0 are equal.
func Equal(a, b proto.Message) bool {
	return canonical(a) == canonical(b)
}

func canonical(message proto.Message) string {
	text, _ := protojson.Marshal(message)
	return fmt.Sprintf("%#v", normal(parse(string(text)), true)) // a map is printed in the order of its keys
}

// parse returns the value of a JSON text with exact numbers, and any other text as it is.
func parse(text string) (value any) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&value) != nil || decoder.More() {
		return text
	}
	return value
}

// normal gives numbers one spelling, and replaces JSON text in the fields of a message by its value.
func normal(value any, isMessage bool) any {
	switch value := value.(type) {
	case map[string]any:
		for key, item := range value {
			if text, is := item.(string); is && isMessage && strings.HasSuffix(key, "Json") {
				value[key] = normal(parse(text), false)
			} else {
				value[key] = normal(item, isMessage)
			}
		}
		if extra, is := value["extraJson"].(map[string]any); is && isMessage && len(extra) == 0 {
			delete(value, "extraJson") // {} means none
		}
	case []any:
		for i, item := range value {
			value[i] = normal(item, isMessage)
		}
	case json.Number:
		if exact, is := new(big.Rat).SetString(value.String()); is {
			return struct{ number string }{exact.RatString()}
		}
	}
	return value
}
