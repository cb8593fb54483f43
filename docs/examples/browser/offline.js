// A service worker: answers from the network, and without one from what the page has loaded before.
const CACHE = "bngrad-training";

addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(clients.claim()));

// The page sends the addresses of its files.
addEventListener("message", (event) => {
  event.waitUntil(
    caches
      .open(CACHE)
      .then((cache) => cache.addAll(event.data))
      .then(() => event.source.postMessage("offline")),
  );
});

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET") return;
  const cached = () => caches.match(request, { ignoreSearch: request.mode === "navigate" });
  event.respondWith(fetch(request).catch(async (error) => (await cached()) ?? Promise.reject(error)));
});
