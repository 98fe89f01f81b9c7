"""python -m osmosis_grpc"""

from osmosis_grpc.cli import main

if __name__ == "__main__":
    main()
