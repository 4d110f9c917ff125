(function () {
  "use strict";
  var root = document.documentElement;
  root.classList.add("js");

  function all(query, from) { return Array.prototype.slice.call((from || document).querySelectorAll(query)); }
  function byId(id) { return document.getElementById(id); }

  // colours: the reader's system, or as chosen here; pages of some browsers may keep nothing
  function kept(value) {
    try {
      if (value === undefined) { return localStorage.getItem("tvm-cascade-theme"); }
      localStorage.setItem("tvm-cascade-theme", value);
    } catch (error) { return null; }
    return value;
  }
  function show(theme) {
    if (theme === "light" || theme === "dark") { root.dataset.theme = theme; } else { delete root.dataset.theme; }
  }
  var themes = all("input[name=theme]");
  themes.forEach(function (input) {
    if (input.value === kept()) { input.checked = true; show(input.value); }
    input.addEventListener("change", function () { show(input.value); kept(input.value); });
  });

  // what a block is, beside the pointer or the focus
  var tip = byId("tip");
  function hide() { tip.hidden = true; }
  function tell(block, x, y) {
    tip.textContent = block.getAttribute("aria-label");
    tip.hidden = false;
    var box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 4)) + "px";
    tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18) + "px";
  }
  function tellBeside(block) {
    var box = block.getBoundingClientRect();
    tell(block, Math.max(0, box.left), Math.min(box.top + box.height / 2, innerHeight - 40));
  }
  var blocks = all(".block");
  var current = 0;
  function go(to) {
    blocks[current].setAttribute("tabindex", "-1");
    current = Math.max(0, Math.min(to, blocks.length - 1));
    blocks[current].setAttribute("tabindex", "0");
    blocks[current].focus();
  }
  blocks.forEach(function (block, k) {
    block.addEventListener("pointermove", function (event) { tell(block, event.clientX, event.clientY); });
    block.addEventListener("pointerleave", hide);
    block.addEventListener("click", function () { go(k); });
    block.addEventListener("focus", function () { tellBeside(block); });
    block.addEventListener("blur", hide);
    block.addEventListener("keydown", function (event) {
      var to = { ArrowRight: k + 1, ArrowDown: k + 1, ArrowLeft: k - 1, ArrowUp: k - 1, Home: 0, End: blocks.length - 1 }[event.key];
      if (to !== undefined) { event.preventDefault(); go(to); }
    });
  });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { hide(); } });
  addEventListener("scroll", function () {
    if (tip.hidden) { return; }
    if (document.activeElement.classList.contains("block")) { tellBeside(document.activeElement); } else { hide(); }
  }, { capture: true, passive: true });

  // the arena's time: steps as they are, or every segment as wide as any other
  var plot = byId("arena-plot"), drawing = plot.querySelector("[data-cuts]");
  var cuts = drawing.dataset.cuts.split(",").map(Number), end = cuts[cuts.length - 1];
  function even(x) {
    var k = 1;
    while (k < cuts.length - 1 && cuts[k] < x) { k += 1; }
    return (k - 1 + (x - cuts[k - 1]) / (cuts[k] - cuts[k - 1])) * end / (cuts.length - 1);
  }
  function percent(x) { return (100 * x / end).toFixed(2) + "%"; }
  var moved = all("path:not(.grid)", plot).map(function (path) {
    return { path: path, steps: path.getAttribute("d") };
  });
  var names = all(".name", plot).map(function (name) {
    var left = parseFloat(name.style.left) * end / 100;
    return { style: name.style, left: left, right: left + parseFloat(name.style.width) * end / 100 };
  });
  all("input[name=time]").forEach(function (input) {
    input.addEventListener("change", function () {
      var place = input.value === "segments" ? even : function (x) { return x; };
      plot.dataset.time = input.value;
      moved.forEach(function (one) {
        one.path.setAttribute("d", one.steps.replace(/(\d+),/g, function (_all, x) { return +place(Number(x)).toFixed(3) + ","; }));
      });
      names.forEach(function (one) {
        var left = place(Math.max(0, Math.min(one.left, end))), right = place(Math.max(0, Math.min(one.right, end)));
        one.style.left = percent(left);
        one.style.width = percent(right - left);
        one.style.display = right - left < 0.04 * end ? "none" : "";
      });
    });
  });

  // zoom: what is drawn grows inside of a box that scrolls
  all("[data-zoom]").forEach(function (bar) {
    var target = byId(bar.dataset.zoom), frame = target.parentElement, natural = target.getAttribute("width"), factor = 1;
    function zoom(to) {
      var middle = (frame.scrollLeft + frame.clientWidth / 2) / frame.scrollWidth;
      factor = Math.max(natural ? 0.25 : 1, Math.min(to, 16));
      target.style.width = natural ? natural * factor + "px" : 100 * factor + "%";
      if (natural) { target.style.height = "auto"; }
      frame.scrollLeft = middle * frame.scrollWidth - frame.clientWidth / 2;
      bar.querySelector("output").textContent = Math.round(100 * factor) + " %";
    }
    all("button", bar).forEach(function (button) {
      button.addEventListener("click", function () {
        var by = Number(button.dataset.by);
        zoom(by ? factor * by : 1);
      });
    });
    frame.addEventListener("keydown", function (event) {
      var by = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 }[event.key];
      if (event.ctrlKey || event.metaKey || event.altKey) { return; }
      if (by) { event.preventDefault(); zoom(factor * by); }
      if (event.key === "0") { event.preventDefault(); zoom(1); }
    });
    frame.addEventListener("wheel", function (event) {
      if (!event.ctrlKey) { return; }
      event.preventDefault();
      zoom(factor * (event.deltaY < 0 ? 1.15 : 1 / 1.15));
    }, { passive: false });
  });

  // the frontier: a point is picked on the drawing; its line of the table says all of it
  var picked = byId("picked"), command = byId("command");
  function pick(point) {
    var row = byId("plan" + point.value);
    all("#plans tr.at").forEach(function (other) { other.classList.remove("at"); });
    row.classList.add("at");
    picked.textContent = point.getAttribute("aria-label");
    command.textContent = row.querySelector("code").textContent;
  }
  all(".point").forEach(function (point) {
    point.addEventListener("change", function () { pick(point); });
    if (point.checked) { pick(point); }
  });
  all("#plans tbody tr").forEach(function (row) {
    row.addEventListener("click", function () {
      var point = document.querySelector(".point[value=\"" + row.id.slice(4) + "\"]");
      point.checked = true;
      pick(point);
    });
  });
  var copy = byId("copy");
  if (copy) {
    copy.addEventListener("click", function () {
      var range = document.createRange();
      range.selectNodeContents(command);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      if (!navigator.clipboard) { return; }
      navigator.clipboard.writeText(command.textContent).then(function () {
        byId("copied").textContent = "copied";
      }, function () { byId("copied").textContent = "selected: copy it with your browser"; });
    });
  }

  // tables: sorted by a column, and by what a name contains
  function number(cell) { return Number(cell.textContent.replace(/[^0-9.eE-]/g, "")); }
  all("table.sortable").forEach(function (table) {
    var body = table.tBodies[0], heads = all("thead th", table), first = all("tr", body);
    heads.forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () {
        var numeric = head.classList.contains("n"), was = head.getAttribute("aria-sort");
        var order = was === (numeric ? "descending" : "ascending") ? (numeric ? "ascending" : "descending") : numeric ? "descending" : "ascending";
        var sign = order === "ascending" ? 1 : -1;
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", order);
        first.slice().sort(function (a, b) {
          var x = a.cells[column], y = b.cells[column];
          return sign * (numeric ? number(x) - number(y) : x.textContent.localeCompare(y.textContent));
        }).forEach(function (row) { body.appendChild(row); });
      });
    });
  });
  all("input[data-filter]").forEach(function (input) {
    var rows = all("#" + input.dataset.filter + " tbody tr"), shown = byId(input.getAttribute("aria-describedby"));
    input.addEventListener("input", function () {
      var word = input.value.toLowerCase(), count = 0;
      rows.forEach(function (row) {
        row.hidden = row.textContent.toLowerCase().indexOf(word) < 0;
        count += row.hidden ? 0 : 1;
      });
      shown.textContent = count + " of " + rows.length;
    });
  });
})();
