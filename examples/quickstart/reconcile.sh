#!/bin/sh
# Makes one zone's file in generated/ what its declaration in zones/ says, whatever state it is in now.
#
# evenkeel calls it with the zone's name in EVENKEEL_ID, and again later if it exits with anything but 0. It may be
# called at any time and any number of times, so it asks what is true now, not what has happened.
set -eu

case $EVENKEEL_ID in
*/* | .*)
    echo "'$EVENKEEL_ID' is no zone's name" >&2
    exit 65 # wrong for good: not tried again
    ;;
esac

declared=zones/$EVENKEEL_ID
generated=generated/$EVENKEEL_ID.zone
new=generated/.$EVENKEEL_ID.new

# What evenkeel shows of this run; "unchanged" says that there was nothing to do.
answer() { printf '%s\n' "$1" >"$EVENKEEL_ANSWER"; }

render() {
    awk -v zone="$EVENKEEL_ID" '
        function fail(why) { print FILENAME ", line " FNR ": " why >"/dev/stderr"; exit 1 }
        function is_address(text, part, i) {
            if (split(text, part, ".") != 4) return 0
            for (i = 1; i <= 4; i++) if (part[i] !~ /^[0-9]+$/ || part[i] > 255) return 0
            return 1
        }
        BEGIN {
            print "; made from zones/" zone ": what is changed here does not last"
            print "$ORIGIN " zone "."
        }
        /^[ \t]*(#|$)/ { next }
        NF != 2 { fail("expected a name and an address, found: " $0) }
        !is_address($2) { fail($2 " is no IPv4 address") }
        { printf "%-12s 300 IN A %s\n", $1, $2 }
    ' "$declared"
}

if [ ! -e "$declared" ]; then
    rm -f "$generated"
    answer '{"message": "no longer declared: its file is removed"}'
    exit
fi

# Written beside and renamed, so that nobody ever reads half a file.
mkdir -p generated
trap 'rm -f "$new"' EXIT
render >"$new"
if cmp -s "$new" "$generated"; then
    answer '{"unchanged": true}'
else
    mv "$new" "$generated"
    answer '{"message": "its file is written"}'
fi
