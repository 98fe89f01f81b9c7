//go:build debian

package trainer

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/proto"
)

// codec encodes messages with google.golang.org/protobuf. grpc-go does this itself, but Debian 12 builds its grpc-go
// 1.33 with github.com/golang/protobuf 1.3, which cannot encode messages of newer stubs.
type codec struct{}

func (codec) Marshal(message interface{}) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (codec) Unmarshal(data []byte, message interface{}) error {
	return proto.Unmarshal(data, message.(proto.Message))
}

func (codec) Name() string { return "proto" }

func init() { encoding.RegisterCodec(codec{}) }
