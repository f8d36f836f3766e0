// The stream of updates and the answers to clicks. Connects again by itself; asks for a token when told to.

const KEY = "octavo-pool-token";

export class Stream {
  constructor({update, status, askToken}) {
    this.take = update;
    this.status = status;
    this.askToken = askToken;
    const given = new URLSearchParams(location.hash.slice(1)).get("token");
    if (given) {
      sessionStorage.setItem(KEY, given);
      history.replaceState(null, "", location.pathname);
    }
  }

  headers() {
    const token = sessionStorage.getItem(KEY);
    return token ? {Authorization: `Bearer ${token}`} : {};
  }

  async run() {
    let pause = 0.25;
    for (;;) {
      try {
        const answer = await fetch("stream", {headers: this.headers(), cache: "no-store"});
        if (answer.status === 401) {
          this.status("token needed", false);
          sessionStorage.setItem(KEY, await this.askToken());
          continue;
        }
        if (!answer.ok) throw new Error((await answer.text()).trim());
        this.status("live", true);
        pause = 0.25;
        await this.read(answer.body.getReader());
        this.status("the scheduler closed the stream; connecting again", false);
      } catch (error) {
        this.status(`${error.message || "connection lost"}; connecting again`, false);
      }
      await new Promise(done => setTimeout(done, pause * 1000));
      pause = Math.min(4, pause * 2);
    }
  }

  async read(reader) {
    const text = new TextDecoder();
    let parts = [];
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      let chunk = text.decode(value, {stream: true}), end;
      while ((end = chunk.indexOf("\n\n")) >= 0) {
        const line = parts.join("") + chunk.slice(0, end);
        parts = [];
        chunk = chunk.slice(end + 2);
        if (line.startsWith("data: ")) this.take(JSON.parse(line.slice(6)), line.length);
      }
      if (chunk) parts.push(chunk);
    }
  }

  // The answer to a click, or null when it is not there any more.
  async ask(path) {
    const answer = await fetch(path, {headers: this.headers(), cache: "no-store"});
    if (answer.status === 404) return null;
    if (!answer.ok) throw new Error((await answer.text()).trim());
    return answer.json();
  }
}
