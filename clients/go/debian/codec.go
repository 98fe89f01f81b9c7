// Package debian makes grpc-go of Debian 12 encode messages of current stubs. A program imports it for this effect.
//
// grpc-go does this itself. Debian 12 builds its grpc-go 1.33 with github.com/golang/protobuf 1.3, which cannot.
package debian

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // which registers its own codec first
	"google.golang.org/protobuf/proto"
)

type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message any) ([]byte, error) { return proto.Marshal(message.(proto.Message)) }

func (codec) Unmarshal(data []byte, message any) error {
	return proto.Unmarshal(data, message.(proto.Message))
}

func init() { encoding.RegisterCodec(codec{}) }
