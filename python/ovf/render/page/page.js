// Puts the page together: unpacks the data, draws the map, keeps theme and paper right.

/** What the report tells of the map: origin, path, who carried it, in which order ranks were reached. */
function storyOf(data) {
  const [first] = data.findings;
  const reach = new Map();
  if (first) reach.set(first[0], 0);
  for (const [, , , to] of data.hops) for (const rank of to) if (!reach.has(rank)) reach.set(rank, reach.size);
  let index = null;
  const carried = (rank, op) => {
    if (!index) {
      index = new Map();
      const put = (key, line) => (index.get(key) || index.set(key, []).get(key)).push(line);
      for (const [api, from, to] of data.links) {
        const givers = from.filter((_, i) => i % 2 === 0), getters = to.filter((_, i) => i % 2 === 0);
        const some = (ranks) => (ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")}, … (${ranks.length})` : ranks.join(", "));
        const line = `${printable(api)}: ${givers.length ? "bad from " + some(givers) : "all contributions finite"}${getters.length ? " → " + some(getters) : ""}`;
        for (const list of [from, to]) for (let i = 0; i < list.length; i += 2) put(`${list[i]}:${list[i + 1]}`, line);
      }
    }
    return (index.get(`${rank}:${op}`) || []).slice(0, 4);
  };
  return {
    originRank: first ? first[0] : null,
    originOp: first ? first[1] : null,
    findings: data.findings, path: data.path, hops: data.hops, links: data.links, details: data.details,
    arrivals: data.hops.reduce((sum, hop) => sum + hop[3].length, 0),
    reach, carried,
  };
}

function themed(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

(function start() {
  const find = (id) => document.getElementById(id);
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null, map = null, controls = null;
  const repaint = () => {
    if (!map) return;
    map.recolour();
    controls.paintLegend();
  };
  themed(prefersDark.matches);
  prefersDark.addEventListener("change", (event) => {
    if (chosen !== null) return;
    themed(event.matches);
    repaint();
  });
  find("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme !== "dark";
    themed(chosen);
    repaint();
  });

  async function draw() {
    const data = await unpack(find("data").textContent);
    performance.mark("unpacked");
    const atlas = new Atlas(data.atlas);
    for (const [rank, op, members] of data.findings) {
      atlas.find(rank, op);
      for (let i = 0; i < members.length; i += 2) atlas.find(members[i], members[i + 1]);
    }
    for (const rank of data.broken) {
      if (!atlas.rowOf.has(rank)) {
        const row = { rank, ops: 0, broken: true, groups: [], roots: new Map(), found: new Set() };
        atlas.rows.push(row);
        atlas.rowOf.set(rank, row);
      }
    }
    atlas.rows.sort((a, b) => a.rank - b.rank);
    const story = storyOf(data);
    map = new RankMap(find("map"), atlas, story);
    const card = new Card(find("card"), find("spoken"), map, story);
    controls = new Controls(map, card, story, find);
    new ResizeObserver(() => map.resize()).observe(find("stage"));
    map.resize();
    controls.count();
    window.addEventListener("beforeprint", () => {
      themed(false);
      card.hide();
      map.colours = palette();
      controls.paintLegend();
      map.resize();
    });
    window.addEventListener("afterprint", () => {
      themed(chosen ?? prefersDark.matches);
      repaint();
      map.resize();
    });
    window.ovfMap = map;
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }

  draw().catch((error) => {
    const failed = find("failed");
    failed.textContent = `The map could not be drawn (${error.message}). The answer and the tables are all here.`;
    failed.hidden = false;
    console.error(error);
  });
})();
