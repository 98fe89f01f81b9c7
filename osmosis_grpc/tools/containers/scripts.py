"""The shell scripts that run in a container. They are fixed texts: paths and programs are arguments or standard input.

So a shell never parses file names or contents; only the program itself is quoted with shlex.quote. The program and its
variables are sent on standard input, because the API server of a cluster logs the arguments of an exec.
"""

from osmosis_grpc.tools import program_caches
from osmosis_grpc.tools.sandbox.files import MOST_AHEAD

MARK = "OSMOSIS_RUN"
"""The variable that all processes of one run have."""

_CACHES = "".join(f'export {name}="${{{name}-{value}}}"\n' for name, value in program_caches.WRITES_NOTHING.items()) + (
    f'case "${program_caches.PYTEST}" in *cache*) ;; *) export '
    f"{program_caches.PYTEST}=\"${program_caches.PYTEST} \"'{program_caches.own_pytest_cache(MARK)}' ;; esac\n"
)
"""Sets the variables of program_caches.py, unless the image sets them; its pytest options are kept."""

_SWEEP = f"""sweep() {{
  n=0
  while p=$(grep -l -s "{MARK}=$1" /proc/[0-9]*/environ); [ -n "$p" ] && [ $n -lt 100 ]; do
    for f in $p; do f=${{f#/proc/}}; kill -9 "${{f%/environ}}" 2>/dev/null; done
    n=$((n+1))
  done
}}
"""
SWEEP = _SWEEP + 'sweep "$1"'
"""Kills every process of a run. $1 is the mark."""

RUN = (
    _SWEEP
    + _CACHES
    + f"""mark=$1 limit=$2 bytes=$4
script=$(dd bs=1 count="$3" 2>/dev/null)
(env "{MARK}=$mark" sleep "$limit" && sweep "$mark") </dev/null >/dev/null 2>&1 &
eval "set -- $script"
cd -- "$1" 2>/dev/null && (
  IFS=/; set -f; p=.
  for c in $2; do p=$p/$c; [ ! -L "$p" ] || exit 1; done
) && cd -- "./$2" 2>/dev/null || {{ sweep "$mark"; echo "$mark" >&2; head -c "$bytes" >/dev/null; exit 125; }}
shift 2
exec 3>&2 2>/dev/null
head -c "$bytes" 3>&- | {{ env "{MARK}=$mark" "$@" 2>&3 3>&-; code=$?; cat >/dev/null; exit $code; }}
code=$?
sweep "$mark"
exit $code"""
)
"""Runs a program. $1 is the mark, $2 a time limit in seconds in case the server dies, $3 the number of bytes of the
quoted working folder, relative folder and program at the start of standard input, $4 that of the program's own
input."""


def _fed(count: str, script: str) -> str:
    """Return a script that always reads its input to the end. $count has the number of bytes.

    Docker does not report the end of a command while it still has input for it.
    """
    return f'head -c "${count}" | {{ (\n{script}\n); code=$?; cat >/dev/null; exit $code; }}'


LINKED, MISSING, NO_FILE, TOO_LARGE, NO_FOLDER = 40, 41, 42, 43, 44
WRONG = {
    LINKED: "is or contains a symbolic link",
    MISSING: "does not exist",
    NO_FILE: "is not a file",
    TOO_LARGE: "is too large",
    NO_FOLDER: "is not a folder",
}
"""The problem of a path by the exit code of a script."""

_PATH = f"""cd -- "$1" || exit {MISSING}
p=.; old=$IFS; IFS=/; set -f
for c in $2; do p=$p/$c; [ -L "$p" ] && exit {LINKED}; done
set +f; IFS=$old
"""
"""Enters the working folder $1, and refuses a symbolic link in the relative path $2. The path is then in $p."""

READ = (
    _PATH
    + f"""[ -e "$p" ] || exit {MISSING}
[ -f "$p" ] || exit {NO_FILE}
[ "$(stat -c %s "$p")" -le "$3" ] || exit {TOO_LARGE}
exec cat "$p" """
)
"""Prints a file. $3 is the most bytes."""

WRITE = _fed(
    "3",
    _PATH
    + f"""[ -e "$p" ] && {{ [ -f "$p" ] || exit {NO_FILE}; }}
mkdir -p "${{p%/*}}" || exit {NO_FOLDER}
t="${{p%/*}}/.osmosis-$4"
m=; [ -e "$p" ] && m=$(stat -c %a "$p") s=$(stat -c %Y "$p")
head -c "$3" > "$t" && [ "$(stat -c %s "$t")" -eq "$3" ] &&
  {{ [ -z "$m" ] || {{ chmod "$m" "$t" && n=$((s - $(stat -c %Y "$t"))) &&
    {{ [ $n -lt 0 ] || [ $n -ge {MOST_AHEAD} ] || touch -d "@$((s + 1))" "$t"; }}; }}; }} &&
   mv -f "$t" "$p" ||
  {{ rm -f "$t"; exit 1; }}""",
)
"""Writes standard input to a file. $3 is the number of bytes, and $4 a random name for the new file. Its time is set as
in files.py."""

REMOVE = _PATH + f'[ -e "$p" ] || exit {MISSING}\n[ -f "$p" ] || exit {NO_FILE}\nexec rm -f "$p"'

LIST = (
    _PATH
    + f"""[ -e "$p" ] || exit {MISSING}
least=1; [ -d "$p" ] || least=0
exec find "$p" -mindepth $least -maxdepth "$3" \\( -type f -o -type d \\) -exec sh -c '
for f; do
  if [ -d "$f" ]; then k=d s=0; else k=f s=$(stat -c %s "$f"); fi
  printf "%s %s %s\\0" "$k" "$s" "$f"
done' sh {{}} +"""
)
"""Prints the kind, the bytes and the path of each file and folder. $3 is the depth."""

PACK = 'exec tar -C "$1" -cf - .'
REPLACE = _fed("2", 'find "$1" -mindepth 1 -delete && exec tar -C "$1" -xof -')
UNPACK = _fed("2", 'mkdir -p "$1" && exec tar -C "$1" -xof -')
"""Scripts that write an archive below the folder $1. $2 is the number of bytes of the archive."""
