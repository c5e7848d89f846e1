-- Requests: text that is text, a trace for those that have none. Answers: OpenAI's shape.

local NOT_TEXT = '{"error":{"message":"The URL is not valid UTF-8; encode its text as UTF-8, then percent-escape it.",' ..
  '"type":"invalid_request_error","param":null,"code":"bad_request"}}'

-- RFC 3629. Fields of the URL become protobuf strings, in which a gateway cannot even read other bytes.
local function is_utf8(text)
  text = text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  for _, form in ipairs({"[\194-\223]", "\224[\160-\191]", "[\225-\236\238\239][\128-\191]", "\237[\128-\159]",
    "\240[\144-\191][\128-\191]", "[\241-\243][\128-\191][\128-\191]", "\244[\128-\143][\128-\191]"}) do
    text = text:gsub(form .. "[\128-\191]", "u")
  end
  return not text:find("[\128-\255]")
end

-- https://www.w3.org/TR/trace-context/: a request that brings no trace begins one, whose id is the
-- request id, so that either finds the other.
local function begin_trace(headers)
  local parent = headers:get("traceparent")
  if parent and #parent == 55 and parent:find("^%x%x%-%x+%-%x+%-%x%x$") then return end
  local id = (headers:get("x-request-id") or ""):gsub("-", ""):lower()
  if #id == 32 then headers:replace("traceparent", "00-" .. id .. "-" .. id:sub(17) .. "-01") end
end

-- gRPC's own headers where they cannot be read fail at the gateway as if it were at fault, and a few
-- such answers take it out of balancing. Only a gRPC call has any.
local function strip_grpc(headers, is_grpc)
  local timeout = headers:get("grpc-timeout")
  if timeout and not (is_grpc and timeout:find("^%d%d?%d?%d?%d?%d?%d?%d?[HMSmun]$")) then
    headers:remove("grpc-timeout")
  end
  if is_grpc then return end
  for _, name in ipairs({"grpc-encoding", "grpc-accept-encoding", "grpc-message", "grpc-status", "te"}) do
    headers:remove(name)
  end
end

-- Messages come as they are: a few compressed megabytes can stand for gigabytes.
-- https://github.com/grpc/grpc/blob/master/doc/compression.md: then UNIMPLEMENTED (12).
local function is_compressed(headers)
  local encoding = headers:get("grpc-encoding")
  return encoding and encoding ~= "identity"
end

function envoy_on_request(handle)
  local headers = handle:headers()
  local content_type = headers:get("content-type") or ""
  local is_grpc = content_type:find("^application/grpc")
  begin_trace(headers)
  strip_grpc(headers, is_grpc)
  if is_grpc and is_compressed(headers) then
    return handle:respond({[":status"] = "200", ["content-type"] = content_type:sub(1, 64), ["grpc-status"] = "12",
      ["grpc-accept-encoding"] = "identity", ["grpc-message"] = "Send messages without compression."})
  end
  if is_utf8(headers:get(":path") or "") then return end
  handle:respond({[":status"] = "400", ["content-type"] = "application/json"}, NOT_TEXT)
end

-- Nobody cancels but the client, who hears no answer. What the gateway's transport ended by itself
-- was too much for it: to be sent again.
local BUSY = '{"error":{"message":"More is asked than can be answered now; try again in 1 s.","type":"server_error",' ..
  '"param":null,"code":"overloaded"}}'

local TYPES = {[403] = "permission_error", [429] = "rate_limit_error"}
local CODES = {[404] = "not_found", [429] = "rate_limit_exceeded", [499] = "cancelled",
  [501] = "not_implemented", [503] = "service_unavailable", [504] = "timeout"}

local function default_type(status)
  return TYPES[status] or (status < 500 and "invalid_request_error" or "server_error")
end

-- A refusal of admission carries JSON; a gRPC client gets the sentence in it as its message. To a
-- gRPC-Web client Envoy also says the HTTP status, which some take for the whole answer.
local function speak_grpc(headers)
  if headers:get("grpc-status") then headers:replace(":status", "200") end
  local hidden = (headers:get("grpc-message") or ""):gsub("\\\\", "\1"):gsub('\\"', "\2")
  -- Envoy makes UNAVAILABLE of HTTP 429, which clients repeat at once; it is RESOURCE_EXHAUSTED.
  if hidden:find('"code":%s*"rate_limit_exceeded"') then headers:replace("grpc-status", "8") end
  local sentence = hidden:match('^{"error":%s*{"message":%s*"([^"]*)"')
  if sentence then headers:replace("grpc-message", (sentence:gsub("\1", "\\"):gsub("\2", '"'))) end
  if headers:get("grpc-status") == "1" then headers:replace("grpc-status", "14") end
end

-- {"code":8,"message":"…","details":[…]}, as the transcoder prints a status, to OpenAI's shape. The
-- message stays as it was escaped; an inner quote is always escaped, so the patterns cannot match
-- inside of it.
local function reshape(handle, status, raw)
  local message = raw:match('^{"code":%d+,"message":"(.-)","details":%[') or raw:match('^{"code":%d+,"message":"(.-)"}$')
  if raw:find('^{"code":%d+') == nil then return end
  local reason, param = raw:match('"reason":"([%w_]+)"'), raw:match('"param":"([%w_%.%-]+)"')
  local wait_s = raw:match('"retry_delay":"([%d%.]+)s"')
  local headers = handle:headers()  -- the ones from before body() are out of scope
  if wait_s then headers:replace("retry-after", tostring(math.max(1, math.ceil(tonumber(wait_s))))) end
  local code = reason and reason:lower() or CODES[status] or "internal_error"
  handle:body():setBytes('{"error":{"message":"' .. (message or "The request failed.") .. '","type":"' ..
    default_type(status) .. '","param":' .. (param and '"' .. param .. '"' or "null") .. ',"code":"' .. code .. '"}}')
end

function envoy_on_response(handle)
  local headers = handle:headers()
  local content_type = headers:get("content-type") or ""
  if content_type:find("^application/grpc") then return speak_grpc(headers) end
  for _, name in ipairs({"grpc-status", "grpc-message", "grpc-status-details-bin", "grpc-accept-encoding"}) do
    headers:remove(name)
  end
  local status = headers:get("x-http-status")
  headers:remove("x-http-status")
  if status and status:find("^[2-5]%d%d$") then return headers:replace(":status", status) end
  status = tonumber(headers:get(":status"))
  if status < 400 or content_type ~= "application/json" then return end
  local body = handle:body()
  if status == 499 and body then
    body:setBytes(BUSY)
    headers = handle:headers()
    headers:replace(":status", "503")
    return headers:replace("retry-after", "1")
  end
  if body then reshape(handle, status, body:getBytes(0, body:length())) end
end
