// Search runs in a worker, and browsers start no worker from a file. In a page that is read from a file, a hidden
// frame takes the worker's place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true, srcdoc: "<!doctype html>" });
      this.loaded = new Promise((resolve) => (frame.onload = resolve)).then(() => {
        const scope = (this.scope = frame.contentWindow);
        const load = (src) =>
          new Promise((onload, onerror) =>
            scope.document.head.append(Object.assign(scope.document.createElement("script"), { src, onload, onerror })),
          );
        scope.importScripts = (...urls) => urls.reduce((done, src) => done.then(() => load(src)), Promise.resolve());
        scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
        return load(new URL(url, location.href).href);
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data })));
    }
  };
}

// In a query, a leading - means "without", and two of them are a syntax error: `--frozen` is searched as `frozen`.
{
  const { postMessage } = Worker.prototype;
  Worker.prototype.postMessage = function (message) {
    const query = typeof message.data === "string" ? { data: message.data.replace(/(^|\s)--(?=\w)/g, "$1") } : {};
    postMessage.call(this, { ...message, ...query });
  };
}
