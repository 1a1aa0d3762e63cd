// Where a browser keeps things. One that keeps nothing for this page has a memory instead, as long as the page lives.

class Memory {
  getItem(name) { return this[name] ?? null; }
  setItem(name, value) { this[name] = value; }
  removeItem(name) { delete this[name]; }
}

// `name`: localStorage or sessionStorage, which throw where they are blocked.
export function opened(name) {
  try {
    return globalThis[name] ?? new Memory();
  } catch {
    return new Memory();
  }
}

export const lasts = store => !(store instanceof Memory);
