// Keeps the training over a reload, in the browser's own database.
const [DATABASE, STORE, KEY] = ["bngrad-training", "trainings", "last"];

/** Returns what `keep` stored last, or undefined; also where the browser stores nothing, as in a private window. */
export async function kept() {
  return inStore("readonly", (store) => store.get(KEY)).catch(() => undefined);
}

/** Stores an object of numbers, texts and arrays; returns whether the browser did. */
export async function keep(training) {
  return inStore("readwrite", (store) => store.put(training, KEY)).then(() => true, () => false);
}

async function inStore(mode, action) {
  const opening = indexedDB.open(DATABASE);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await result(opening);
  try {
    return await result(action(database.transaction(STORE, mode).objectStore(STORE)));
  } finally {
    database.close();
  }
}

const result = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
