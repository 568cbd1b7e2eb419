-- The rules of a buffer, inside Redis: the same as those of `shelf.py`, in the same order.
-- KEYS[1] is the stream of groups; the other keys are named after it. ARGV[1] is the operation.
-- A lease is a consumer of the group `g`: what it holds is its list of pending entries, and the idle
-- time of an entry is the age of the lease. The stream is never trimmed: admission bounds it.
local S, G, OP, FREE = KEYS[1], 'g', ARGV[1], 'given-back'
local STATE, KNOWN, META, WAITING, TICKETS, LEFT, DEAD, LAGS =
  S .. ':state', S .. ':known', S .. ':meta', S .. ':waiting', S .. ':tickets', S .. ':left',
  S .. ':dead', S .. ':lags'
local call = redis.call

local function num(name) return tonumber(call('HGET', STATE, name) or 0) end
local function add(name, by) return call('HINCRBY', STATE, name, by) end
local function now()
  local t = call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1e6 + num('ahead')
end
local policy = call('HGET', STATE, 'policy')
if not policy and OP ~= 'open' then return redis.error_reply('NOGROUP there is no buffer') end
local P = {}
for name, value in pairs(cjson.decode(policy or '{}')) do
  if value ~= cjson.null then P[name] = value end
end
local version = tonumber(call('HGET', STATE, 'version') or nil)

local function meta(id) return cjson.decode(call('HGET', META, id)) end
local function is_stale(of, staleness)
  return staleness and of and version and of < version - staleness
end
local function is_known(key) return call('ZSCORE', KNOWN, key) end

-- The group leaves, or is known as one that never came.
local function settle(key, reason, id, of)
  if id then
    local m = meta(id)
    call('XACK', S, G, id)
    call('XDEL', S, id)
    call('HDEL', META, id)
    call('ZREM', WAITING, id)
    add('bytes', -m.size)
    add('uses', -m.uses)
    of = m.version
  end
  local number = add('number', 1)
  call('ZADD', KNOWN, number, key)
  call('XADD', LEFT, 'MAXLEN', '~', P.remember, number .. '-0', 'key', key, 'reason', reason,
    'version', of and string.format('%d', of) or '')
  call('ZREMRANGEBYSCORE', KNOWN, '-inf', number - P.remember)
end
local function drop(id, reason)
  call('HINCRBY', S .. ':dropped', reason, 1)
  settle(meta(id).key, reason, id)
end
local function refuse(key, reason, of)
  call('HINCRBY', S .. ':dropped', reason, 1)
  settle(key, reason, nil, of)
  return reason
end
local function place(m, body)
  local id = call('XADD', S, '*', 'key', m.key, 'group', body)
  call('HSET', META, id, cjson.encode(m))
  call('ZADD', WAITING, m.version or '+inf', id)
  return id
end
local function is_full(size)
  if call('XLEN', S) + call('ZCARD', TICKETS) >= P.capacity then return true end
  return P.capacity_bytes and num('bytes') + size > P.capacity_bytes
end
-- The entries of a lease, or those of it that are asked for by key.
local function held(lease, first)
  local asked, found = nil, {}
  if ARGV[first] then
    asked = {}
    for i = first, #ARGV do asked[ARGV[i]] = true end
  end
  if lease == '' or lease == FREE then return found end
  for _, p in ipairs(call('XPENDING', S, G, '-', '+', 1000000, lease)) do
    if not asked or asked[meta(p[1]).key] then found[#found + 1] = p[1] end
  end
  return found
end
local function tidy(lease)
  if #call('XPENDING', S, G, '-', '+', 1, lease) == 0 then
    call('XGROUP', 'DELCONSUMER', S, G, lease)
  end
end

-- The leases, each with the number of its entries.
local function leases()
  return call('XPENDING', S, G)[4] or {}
end

local O = {}

function O.open(policy, identity)
  if call('EXISTS', STATE) == 0 then
    call('HSET', STATE, 'policy', policy, 'identity', identity)
    call('XGROUP', 'CREATE', S, G, '0', 'MKSTREAM')
  end
  return call('HGET', STATE, 'policy')
end

function O.reserve(number, stem)
  if num('finished') == 1 then return {} end
  local t = now()
  call('ZREMRANGEBYSCORE', TICKETS, '-inf', t)
  local reserved = call('ZCARD', TICKETS)
  local room = math.min(tonumber(number), P.capacity - call('XLEN', S) - reserved)
  if P.staleness and P.batch then
    local base = num('base')
    local steps = P.staleness + (version or base) - base + 1
    local left = steps * P.batch - num('acked_since') - num('uses')
    left = math.floor(left / P.consume)
    local more = left > 0 and math.floor(P.batch * (P.over_provision or 0)) or 0
    room = math.min(room, left + more - reserved)
  end
  local tickets = {}
  for i = 1, room do
    tickets[i] = stem .. ':' .. i
    call('ZADD', TICKETS, t + P.reserve_s, tickets[i])
  end
  return tickets
end

function O.release(owner, ...)
  for _, ticket in ipairs(owner ~= '' and call('ZRANGE', TICKETS, 0, -1) or {}) do
    if string.match(ticket, '^(.*):[^:]*:[^:]*$') == owner then call('ZREM', TICKETS, ticket) end
  end
  local idle = math.floor(P.visibility_s * 1000) + 1
  for _, lease in ipairs(owner ~= '' and leases() or {}) do
    if string.match(lease[1], '^(.*):[^:]*$') == owner then
      for _, p in ipairs(call('XPENDING', S, G, '-', '+', 1000000, lease[1])) do
        local before = math.max(0, p[4] - 1)
        call('XCLAIM', S, G, FREE, 0, p[1], 'IDLE', idle, 'RETRYCOUNT', before, 'JUSTID')
      end
      tidy(lease[1])
    end
  end
  for _, ticket in ipairs({...}) do call('ZREM', TICKETS, ticket) end
end

function O.put(key, of, ticket, body)
  local due, size = call('ZSCORE', TICKETS, ticket), #body
  of = tonumber(of)
  call('ZREM', TICKETS, ticket)
  if is_known(key) then
    add('duplicates', 1)
    return 'duplicate'
  end
  if is_stale(of, P.staleness) then return refuse(key, 'stale', of) end
  if P.capacity_bytes and size > P.capacity_bytes then return refuse(key, 'too_large', of) end
  if P.on_full == 'drop_oldest' then
    while is_full(size) do
      local ids = call('HGET', STATE, 'last') or '0'
      local first = call('XRANGE', S, '(' .. ids, '+', 'COUNT', 1)[1]
      if not first then break end
      drop(first[1], 'full')
    end
  end
  if is_full(size) then
    if due then call('ZADD', TICKETS, due, ticket) end
    if P.on_full ~= 'block' then call('HINCRBY', S .. ':dropped', 'full', 1) end
    return 'full'
  end
  place({key = key, version = of, size = size, uses = P.consume, since = now()}, body)
  call('ZADD', KNOWN, '+inf', key)
  add('bytes', size)
  add('uses', P.consume)
  add('put', 1)
  return 'ok'
end

function O.has_room(size)
  return is_full(tonumber(size)) and 0 or 1
end

function O.refuse(key, reason, ticket)
  call('ZREM', TICKETS, ticket)
  if is_known(key) then
    add('duplicates', 1)
    return 'duplicate'
  end
  return refuse(key, reason)
end

function O.get(number, least, staleness, lease)
  number, least, staleness = tonumber(number), tonumber(least), tonumber(staleness)
  if staleness and version then
    for _, id in ipairs(call('ZRANGEBYSCORE', WAITING, '-inf', '(' .. version - staleness)) do
      drop(id, 'stale')
    end
  end
  local again, before = {}, {}
  local due = call('XPENDING', S, G, 'IDLE', math.floor(P.visibility_s * 1000), '-', '+', 1000000)
  for _, p in ipairs(due) do
    local m = meta(p[1])
    if p[4] >= P.max_deliveries then
      call('LPUSH', DEAD, m.key)
      call('LTRIM', DEAD, 0, 999)
      drop(p[1], 'dead')
    elseif is_stale(m.version, staleness) then
      drop(p[1], 'stale')
    elseif #again < number then
      again[#again + 1] = p[1]
    end
    before[p[2]] = true
  end
  if num('finished') == 1 then least = 1 end
  local waiting = call('ZCARD', WAITING)
  local is_enough, taken = #again + waiting >= math.max(1, least), {}
  if is_enough and #again > 0 then
    taken = call('XCLAIM', S, G, lease, 0, unpack(again))
    add('redelivered', #again)
  end
  for consumer in pairs(before) do tidy(consumer) end
  if not is_enough then
    return {num('finished') == 1 and call('XLEN', S) == 0 and 1 or 0, version or ''}
  end
  if #taken < number and waiting > 0 then
    local new = call('XREADGROUP', 'GROUP', G, lease, 'COUNT', number - #taken, 'STREAMS', S, '>')
    for _, entry in ipairs(new and new[1][2] or {}) do
      taken[#taken + 1] = entry
      call('ZREM', WAITING, entry[1])
      call('HSET', STATE, 'last', entry[1])
    end
  end
  add('delivered', #taken)
  local bodies = {0, version or ''}
  for i, entry in ipairs(taken) do
    local of = meta(entry[1]).version
    if of and version then call('HINCRBY', LAGS, version - of, 1) end
    bodies[i + 2] = entry[2][4]
  end
  return bodies
end

function O.ack(lease)
  local keys = {}
  for i, id in ipairs(held(lease, 3)) do
    local m = meta(id)
    keys[i] = m.key
    add('acked', 1)
    add('acked_since', 1)
    if m.uses > 1 then
      local body = call('XRANGE', S, id, id)[1][2][4]
      call('XACK', S, G, id)
      call('XDEL', S, id)
      call('HDEL', META, id)
      m.uses = m.uses - 1
      add('uses', -1)
      place(m, body)
    else
      settle(m.key, 'acked', id)
    end
  end
  tidy(lease)
  return keys
end

function O.nack(lease, requeue)
  local keys = {}
  for i, id in ipairs(held(lease, 4)) do
    keys[i] = meta(id).key
    if requeue == '1' then
      local idle = math.floor(P.visibility_s * 1000) + 1
      call('XCLAIM', S, G, FREE, 0, id, 'IDLE', idle, 'JUSTID')
    else
      drop(id, 'nacked')
    end
  end
  tidy(lease)
  return keys
end

function O.extend(lease)
  if call('ZSCORE', TICKETS, lease) then
    call('ZADD', TICKETS, now() + P.reserve_s, lease)
    return 1
  end
  local ids = held(lease, 3)
  if #ids > 0 then
    ids[#ids + 1] = 'JUSTID'
    call('XCLAIM', S, G, lease, 0, unpack(ids))
    return #ids - 1
  end
  return 0
end

function O.set_version(to, figures)
  to = tonumber(to)
  if not version or to < version then
    call('HSET', STATE, 'base', to, 'acked_since', 0)
  end
  call('HSET', STATE, 'version', to, 'figures', figures)
end

function O.finish(is_finished)
  call('HSET', STATE, 'finished', is_finished)
end

function O.settled(after, number)
  local found = {}
  local from = after == '' and '-' or '(' .. after .. '-0'
  for i, each in ipairs(call('XRANGE', LEFT, from, '+', 'COUNT', number)) do
    local f = each[2]
    found[i] = {string.match(each[1], '^%d+'), f[2], f[4], f[6]}
  end
  return found
end

function O.stats()
  local oldest = call('XRANGE', S, '-', '+', 'COUNT', 1)[1]
  return {
    call('HGETALL', STATE), call('HGETALL', S .. ':dropped'), call('HGETALL', LAGS),
    call('ZCARD', WAITING), call('XLEN', S), call('ZCARD', TICKETS), call('LRANGE', DEAD, 0, -1),
    oldest and tostring(now() - meta(oldest[1]).since) or '', leases(),
  }
end

return O[OP](unpack(ARGV, 2))
