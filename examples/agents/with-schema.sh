#!/bin/sh
# Tells a model's command line which JSON to answer, and passes everything else through.
#
#   workflow run FILE --agent 'command:sh examples/agents/with-schema.sh claude -p'
#
# A command agent gets its prompt on stdin; a call with a schema also finds the schema in WORKFLOW_AGENT_SCHEMA.

if [ $# -eq 0 ]; then
    echo "usage: with-schema.sh COMMAND [ARGUMENT...]" >&2
    exit 2
fi
{
    cat
    if [ -n "${WORKFLOW_AGENT_SCHEMA:-}" ]; then
        printf '\n\nAnswer with one JSON object that matches this JSON Schema, and with nothing else:\n%s\n' \
            "$WORKFLOW_AGENT_SCHEMA"
    fi
} | "$@"
