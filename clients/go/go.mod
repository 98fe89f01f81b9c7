module osmosis

go 1.19

require (
	google.golang.org/genproto v0.0.0-20230110181048-76db0878b65f
	google.golang.org/grpc v1.33.3
	google.golang.org/protobuf v1.28.1
)
