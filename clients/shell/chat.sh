#!/bin/sh
# One question, streamed: clients/shell/chat.sh "Who are you?"
set -eu
question=$(printf '%s' "${1:-Hello! Who are you?}" | sed 's/[\\"]/\\&/g')
exec curl --silent --show-error --no-buffer "$OPENAI_BASE_URL/chat/completions" \
  --header "Authorization: Bearer $OPENAI_API_KEY" \
  --header 'Content-Type: application/json' \
  --data "{\"model\": \"${MODEL_ID:-chatmesh-tiny}\", \"stream\": true, \"max_tokens\": 200, \"temperature\": 0.3,
          \"messages\": [{\"role\": \"user\", \"content\": \"$question\"}]}"
