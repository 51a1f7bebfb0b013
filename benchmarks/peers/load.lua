-- One input of the digits, again and again; with PAUSE, each connection waits that many ms on average before it asks.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long n; } moment; int clock_gettime(int clock, moment *at);")

local moment, pause = ffi.new("moment"), tonumber(os.getenv("PAUSE") or "0")
local threads, asked = {}, nil
times = {}

function setup(thread)
   table.insert(threads, thread)
end

function init(args)
   local numbers = {}
   for index = 1, 64 do numbers[index] = string.format("%.4f", (index % 17) / 16) end
   local rows = {}
   for row = 0, 7 do rows[row + 1] = "[" .. table.concat(numbers, ",", 8 * row + 1, 8 * row + 8) .. "]" end
   asked = wrk.format("POST", "/predict", {["Content-Type"] = "application/json"},
                      '{"input":[' .. table.concat(rows, ",") .. "]}")
   math.randomseed(tonumber(os.getenv("SEED") or "1"))
   if pause == 0 then delay, request = nil, function() return asked end end
end

function delay()
   return math.floor(0.5 - pause * math.log(1 - math.random()))
end

function request()
   ffi.C.clock_gettime(1, moment)
   times[#times + 1] = tonumber(moment.s) + 1e-9 * tonumber(moment.n)
   return asked
end

function done(summary, latency, requests)
   local arrivals = {}
   if pause > 0 then
      for _, thread in ipairs(threads) do
         for _, at in ipairs(thread:get("times")) do table.insert(arrivals, string.format("%.6f", at)) end
      end
   end
   local errors, percentiles = summary.errors, {}
   for share = 1, 99 do percentiles[share] = string.format("%.6f", latency:percentile(share) / 1e6) end
   io.write(string.format(
      '\nFOUND {"requests": %d, "seconds": %.6f, "p50": %.6f, "p99": %.6f, "failed": %d, "percentiles": [%s], ' ..
      '"arrivals": [%s]}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout,
      table.concat(percentiles, ", "), table.concat(arrivals, ", ")))
end
