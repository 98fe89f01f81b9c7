"""A plugin `docker compose` for Harbor's runner, made of Debian's docker-compose 1.29, which has no `cp` and no --wait.

Its `exec` and `cp` are those of Docker. Linked as ~/.docker/cli-plugins/docker-compose.
"""

import os
import subprocess
import sys

METADATA = '{"SchemaVersion": "0.1.0", "Vendor": "Debian", "Version": "v1.29"}'
WITH_VALUE = ("--project-name", "--project-directory", "-p", "-f", "--file")


def container(options, service):
    """The name of the container of a service."""
    project = options[options.index("--project-name") + 1]
    labels = [f"com.docker.compose.project={project}", f"com.docker.compose.service={service}"]
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    listed = subprocess.run(["docker", "ps", "-aq", *filters], check=True, capture_output=True, text=True)
    return listed.stdout.split()[0]


def main(words):
    """Run a command."""
    if words[:1] == ["docker-cli-plugin-metadata"]:
        print(METADATA)
        return
    words = words[1:] if words[:1] == ["compose"] else words
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    options, command, rest = words[:at], words[at : at + 1], words[at + 1 :]
    if command == ["exec"]:
        service = next(
            index
            for index, word in enumerate(rest)
            if not word.startswith("-") and rest[index - 1] not in ("-u", "-w", "-e")
        )
        given = [word for word in rest[:service] if word not in ("-T", "-it")]
        os.execvp("docker", ["docker", "exec", "-i", *given, container(options, rest[service]), *rest[service + 1 :]])
    if command == ["cp"]:
        split = [place.partition(":") for place in rest]
        places = [f"{container(options, name)}:{path}" if colon else name for name, colon, path in split]
        os.execvp("docker", ["docker", "cp", *places])
    rest = [word for word in rest if word != "--wait"]
    os.execvp("docker-compose", ["docker-compose", *options, *command, *rest])


if __name__ == "__main__":
    main(sys.argv[1:])
