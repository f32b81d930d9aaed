-- Questions for wrk: bodies from a file, a line each, in turn.
-- wrk ... -s service_load.lua URL -- FILE json|msgpack

local bodies = {}
local next_body = 0
local headers = {}

function init(args)
    headers["Content-Type"] = "application/" .. args[2]
    for line in io.lines(args[1]) do
        if args[2] == "msgpack" then
            line = line:gsub("..", function(pair)
                return string.char(tonumber(pair, 16))
            end)
        end
        bodies[#bodies + 1] = wrk.format("POST", nil, headers, line)
    end
end

function request()
    next_body = next_body % #bodies + 1
    return bodies[next_body]
end
