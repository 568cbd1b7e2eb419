// Asks the server of the page.

export async function get(path) {
  return read(await fetch(path));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  return read(await fetch(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function read(reply) {
  const found = await reply.json().catch(() => null);
  if (reply.ok && found !== null) return found;
  throw new Error(found?.error?.message ?? found?.error ?? `the server answered with status ${reply.status}`);
}
