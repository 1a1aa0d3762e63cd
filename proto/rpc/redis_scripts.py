"""What has to happen in Redis at one moment, in Lua.

A full Redis refuses a script's commands that need memory only until one has written. So leases are taken and
renewed there, too, and doors joined: who has no lease or no door cannot free what the others wait for.
"""

# Takes a lease, with an inbox that is empty: what lay there belongs to calls that were dropped. A group is
# made and dropped again for what it leaves behind, an empty stream. The process is listed among all others.
# Returns this server's clock.
TAKE_LEASE = """
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('XGROUP', 'CREATE', KEYS[2], 'none', '$', 'MKSTREAM')
redis.call('XGROUP', 'DESTROY', KEYS[2], 'none')
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SADD', KEYS[3], ARGV[4])
return redis.call('TIME')
"""

# Renews a lease, and writes it if it says something else now. Returns whether it and the inbox were there,
# and this server's clock.
RENEW_LEASE = """
local held = redis.call('PEXPIRE', KEYS[1], ARGV[2]) * redis.call('EXPIRE', KEYS[2], ARGV[3])
if held == 1 and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {held, redis.call('TIME')}
"""

# Makes a door, if there is none, whose calls are read from the first one: those that came before there was
# any replica are served, too. Settles a call that never was, because that counts as having written.
JOIN = """
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if made.err and not string.find(made.err, 'BUSYGROUP') then return made end
"""

# Tells how many entries a door has, how many of them are pending, and the age of the oldest in milliseconds.
# The age is by this server's own clock, which has given the entry its id.
LOOK = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
if not oldest then return {0, pending, 0} end
local now = redis.call('TIME')
local age = now[1] * 1000 + math.floor(now[2] / 1000) - string.match(oldest[1], '%d+')
return {redis.call('XLEN', KEYS[1]), pending, math.max(0, age)}
"""

# Settles calls, which frees memory, and then writes to inboxes: all at one moment, so that no call has left
# its door when its ACCEPT is not written. Returns an error or an empty string for each call and each entry.
# Their keys are arguments: whoever names a key in KEYS needs the right to read it.
SETTLE = """
local errors, calls = {}, tonumber(ARGV[3])
local function try(...)
  local reply = redis.pcall(...)
  errors[#errors + 1] = type(reply) == 'table' and reply.err or ''
end
for i = 4, #ARGV, 2 do
  if #errors < calls then
    try('XACK', ARGV[i], ARGV[1], ARGV[i + 1])
    redis.pcall('XDEL', ARGV[i], ARGV[i + 1])
  else
    try('XADD', ARGV[i], 'NOMKSTREAM', '*', ARGV[2], ARGV[i + 1])
  end
end
return errors
"""

# Lets another consumer have entries that are pending for this one, as if they had not been given to it.
# Atomic, so that nobody is robbed of one that he has taken over meanwhile.
GIVE_BACK = """
for i = 4, #ARGV do
  local item = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])[1]
  if item then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[i], 'RETRYCOUNT', item[4] - 1, 'JUSTID')
  end
end
"""

# Takes over an entry that was given back, or is pending for a consumer without a lease, and removes
# consumers that have neither a lease nor an entry. Atomic, so that a consumer which comes back at this very
# moment loses nothing. Returns the entry's id, its fields, and the number of consumers that it was given to.
# If they are too many, their end may come from reading the fields, which are left out.
ADOPT = """
for _, row in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #row, 2 do consumer[row[i]] = row[i + 1] end
  local name = consumer['name']
  local free = name == ARGV[4]
  if ARGV[5] == '1' then free = name ~= ARGV[2] and redis.call('EXISTS', ARGV[3] .. name) == 0 end
  if free then
    local item = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, name)[1]
    while item do
      local id, deliveries = item[1], item[4] + 1
      local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
      if entry then
        redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, id, 'RETRYCOUNT', deliveries, 'JUSTID')
        return {id, deliveries <= tonumber(ARGV[6]) and entry[2], deliveries}
      end
      redis.call('XACK', KEYS[1], ARGV[1], id)
      item = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, name)[1]
    end
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
  end
end
return nil
"""
