#!/bin/sh
# Prints all ids, one a line: what is wanted, and what is left of what once was. If it fails, nothing is concluded from
# what it has printed, and it is called again.
set -eu
wanted=$(ls wanted)
left=$(ls actual 2>/dev/null || true)
printf '%s\n' "$wanted" "$left" | sed '/^$/d' | sort -u
