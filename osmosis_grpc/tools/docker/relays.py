"""A program for containers that listens on ports and forwards connections to Unix sockets, in three languages.

The image must have an interpreter for one of them. The program texts are fixed: ports and paths are arguments.
"""

FOLDER = "/run/osmosis"
"""The path of the sockets in a container."""
PROXY_PORT = 3128
"""The port of the proxy in a container, if a list of hosts is allowed."""
NO_LANGUAGE, NO_SOCKETS, NOT_LISTENING = 50, 51, 52
PROBLEMS = {
    NO_LANGUAGE: "the image has no perl, python3 or node, which pass on the connections of a box",
    NO_SOCKETS: "the container does not see the sockets of this process; the daemon has to run on this machine",
    NOT_LISTENING: "the ports of the box cannot be opened",
}
"""The problem by the exit code of RELAY."""

_PERL = """
use IO::Socket::INET; use IO::Socket::UNIX; use IO::Select;
$SIG{CHLD} = "IGNORE";
my %on = (LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 128, ReuseAddr => 1);
my $server = IO::Socket::INET->new(%on) or die;
while (1) {
  my $client = $server->accept or next;
  my $child = fork;
  if (!defined $child || $child) { close $client; next }
  my $outside = IO::Socket::UNIX->new(Peer => $ARGV[1]) or exit 1;
  my %other = (fileno $client, $outside, fileno $outside, $client);
  my $open = IO::Select->new($client, $outside);
  while (my @ready = $open->can_read) {
    for my $from (@ready) {
      my $to = $other{fileno $from};
      my $read = sysread $from, my $data, 65536;
      if (!$read) { $open->remove($from); shutdown $to, 1; next }
      for (my $at = 0; $at < $read;) { $at += (syswrite $to, $data, $read - $at, $at) || exit 0 }
    }
  }
  exit 0;
}
"""
_PYTHON = """
import asyncio, sys
async def pump(reader, writer):
    try:
        while True:
            data = await reader.read(65536)
            if not data:
                break
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.close()
async def one(reader, writer):
    try:
        back, outside = await asyncio.open_unix_connection(sys.argv[2])
    except OSError:
        writer.close()
        return
    await asyncio.gather(pump(reader, outside), pump(back, writer))
    outside.close()
    writer.close()
async def main():
    await (await asyncio.start_server(one, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(main())
"""
_NODE = """
const net = require("net"), [port, path] = process.argv.slice(-2);
net.createServer({allowHalfOpen: true}, client => {
  const outside = net.connect({path, allowHalfOpen: true});
  client.pipe(outside).pipe(client);
  client.on("error", () => outside.destroy());
  outside.on("error", () => client.destroy());
}).listen(Number(port), "127.0.0.1");
"""

RELAY = f"""folder=$1; shift
if command -v perl >/dev/null 2>&1 && perl -MIO::Socket::UNIX -e 1 2>/dev/null; then
  relay() {{ perl -e '{_PERL}' "$@"; }}
elif command -v python3 >/dev/null 2>&1; then
  relay() {{ python3 -c '{_PYTHON}' "$@"; }}
elif command -v node >/dev/null 2>&1; then
  relay() {{ node -e '{_NODE}' "$@"; }}
else
  exit {NO_LANGUAGE}
fi
for port; do
  [ -S "$folder/$port" ] || exit {NO_SOCKETS}
  relay "$port" "$folder/$port" </dev/null >/dev/null 2>&1 &
done
for port; do
  n=0
  until grep -q ":$(printf %04X "$port") 00000000:0000 0A" /proc/net/tcp; do
    n=$((n+1)); [ $n -lt 400 ] || exit {NOT_LISTENING}
    sleep 0.05
  done
done"""
"""Opens ports on the loopback of a container. $1 is the folder with the sockets, and the others are the ports."""
