#!lua name=baton_projection_v1
-- All that writes the projection. A delta is three arguments: the number of its table, the key, and the row as JSON
-- ('' when the row is gone). Rows are absolute values, so applying a delta twice changes nothing.

local function write(tables, args, from)
  for i = from, #args, 3 do
    local name = tables[tonumber(args[i])]
    if args[i + 2] == '' then redis.call('HDEL', name, args[i + 1])
    else redis.call('HSET', name, args[i + 1], args[i + 2]) end
  end
end

local function seen(meta)
  local m = redis.call('HMGET', meta, 'seq', 'hash')
  return tonumber(m[1] or '0'), m[2] or ''
end

-- FCALL baton_apply 5 meta nodes devices teams jobs   first last hash_before hash_after [table key row]...
-- One batch of records first..last: {1, seq} applied, {0, seq} seen before, {-1, seq} gap, {-2, seq} another chain.
redis.register_function('baton_apply', function(keys, args)
  local seq, hash = seen(keys[1])
  local first, last = tonumber(args[1]), tonumber(args[2])
  if last <= seq then return {0, seq} end
  if first > seq + 1 then return {-1, seq} end
  if first == seq + 1 and hash ~= args[3] then return {-2, seq} end
  write({keys[2], keys[3], keys[4], keys[5]}, args, 5)
  redis.call('HSET', keys[1], 'seq', last, 'hash', args[4])
  return {1, last}
end)

-- FCALL baton_fill 5 next:meta next:nodes next:devices next:teams next:jobs   fresh [table key row]...
-- A part of a rebuild; fresh is '1' for the first one. An abandoned one expires.
redis.register_function('baton_fill', function(keys, args)
  if args[1] == '1' then redis.call('DEL', unpack(keys)) end
  write({keys[2], keys[3], keys[4], keys[5]}, args, 2)
  redis.call('HINCRBY', keys[1], 'rows', (#args - 1) / 3)
  for i = 1, 5 do redis.call('EXPIRE', keys[i], 3600) end
  return 1
end)

-- FCALL baton_flip 10 meta nodes devices teams jobs next:meta next:nodes ...   seq hash rows
-- Puts what was filled into place: state, sequence and hash in one step. 0 when a part of it was lost meanwhile.
redis.register_function('baton_flip', function(keys, args)
  if redis.call('HGET', keys[6], 'rows') ~= args[3] then return 0 end
  for i = 2, 5 do
    redis.call('DEL', keys[i])
    if redis.call('EXISTS', keys[i + 5]) == 1 then
      redis.call('RENAME', keys[i + 5], keys[i])
      redis.call('PERSIST', keys[i])
    end
  end
  redis.call('DEL', keys[6])
  redis.call('HSET', keys[1], 'seq', args[1], 'hash', args[2])
  return 1
end)
