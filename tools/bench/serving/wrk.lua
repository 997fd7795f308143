-- Sends the requests of a folder in turn, and prints what came of it as one line of JSON.
-- Arguments: the path, the folder, how many bodies it has; then pairs of header name and value.
local requests, at = {}, 0

function init(args)
  local path, folder, count = args[1], args[2], tonumber(args[3])
  local headers = {}
  for i = 4, #args - 1, 2 do headers[args[i]] = args[i + 1] end
  for i = 1, count do
    local file = assert(io.open(folder .. "/" .. i, "rb"))
    requests[i] = wrk.format("POST", path, headers, file:read("*a"))
    file:close()
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.6f, "bytes": %d, "failed": %d, "p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6, summary.bytes,
    e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
