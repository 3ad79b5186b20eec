#!/bin/sh
# Makes actual/ID what wanted/ID says, whatever it is now. The id is in EVENKEEL_ID.
#
# It may be called at any time and any number of times, so it looks at what is true now, not at what has happened.
# Exit 0: done. Exit 65: wrong for good, not tried again. Any other exit: tried again later. What it prints is logged.
set -eu
id=$EVENKEEL_ID

case $id in
*/* | .*)
    echo "'$id' is no name of a file here" >&2
    exit 65
    ;;
esac

# No longer wanted: what is left of it goes.
if [ ! -e "wanted/$id" ]; then
    rm -f "actual/$id"
    exit
fi

# As it should be. An answer is optional; "unchanged" says that there was nothing to do.
if cmp -s "wanted/$id" "actual/$id"; then
    echo '{"unchanged": true}' >"$EVENKEEL_ANSWER"
    exit
fi

# Written beside and renamed, so that nobody ever reads half a file.
mkdir -p actual
cp "wanted/$id" "actual/.$id.new"
mv "actual/.$id.new" "actual/$id"
echo '{"message": "written"}' >"$EVENKEEL_ANSWER"
