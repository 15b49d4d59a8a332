// Opened from a folder (file:), a page may start no worker, and the search is one. This runs a worker's script in an
// empty frame of the page instead, with messages in both directions. From a server nothing changes. The theme's own
// way would be to load such a script from a network; its name tells the theme that there is one.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #waiting = [];
    #inside = null;

    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      const script = document.createElement("script");
      script.src = new URL(address, location.href).href;
      script.onload = () => {
        this.#inside = frame.contentWindow;
        this.#waiting.splice(0).forEach((message) => this.#deliver(message));
      };
      const start = () => {
        document.body.append(frame);
        // What the worker posts goes to whoever made it, later, as a worker's messages do.
        frame.contentWindow.postMessage = (data) =>
          setTimeout(() => this.dispatchEvent(new MessageEvent("message", { data })));
        frame.contentDocument.body.append(script);
      };
      if (document.body) start();
      else addEventListener("DOMContentLoaded", start);
    }

    #deliver(data) {
      setTimeout(() => this.#inside.dispatchEvent(new this.#inside.MessageEvent("message", { data })));
    }

    postMessage(data) {
      if (this.#inside) this.#deliver(data);
      else this.#waiting.push(data);
    }

    terminate() {}
  };
}
