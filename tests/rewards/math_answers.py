# SPDX-License-Identifier: Apache-2.0
r"""Answers as models write them beside gold answers, most of them of MATH: right ones and some that are wrong.

A line is a gold answer, ACCEPTS or REFUSES, and answers with two semicolons between them.
"""

_TABLE = r"""
20\text{ miles} ACCEPTS 20 ;; 20\mbox{ miles} ;; 20 miles ;; 20~\text{mi}
20\text{ miles} REFUSES 21\text{ miles}
20 ACCEPTS 20\text{ miles} ;; ZERO-WIDTH20
\text{Friday} ACCEPTS Friday ;; \text{Friday} ;; \textbf{Friday} ;; \mathrm{Friday} ;; friday ;; \text{friday}
\text{Friday} ACCEPTS \text{Friday}.
\text{Friday} REFUSES \text{Sunday} ;; Sunday
\mbox{four} ACCEPTS \text{four} ;; four
\mbox{four} REFUSES five
164 \pi \mbox{ square feet} ACCEPTS 164\pi ;; 164 \pi \text{ ft}^2
2400 \mbox{ cm}^2 ACCEPTS 2400 ;; 2400\text{ cm}^2
2400 ACCEPTS 2400\text{ cm}^3
320000 \mbox{ acres} ACCEPTS 320,000
-\frac12 ACCEPTS -\frac{1}{2} ;; -0.5 ;; -1/2 ;; -\dfrac12 ;; -\tfrac{1}{2} ;; \frac{-1}{2} ;; \frac{1}{-2}
-\frac12 REFUSES \dfrac12
-\frac 32 ACCEPTS -\frac 3 2
\frac{1}{512} ACCEPTS \frac1{512}
\frac1{512} ACCEPTS 2^{-9}
\begin{pmatrix} 4 \\ -3 \end{pmatrix} ACCEPTS \begin{pmatrix} 4 \\ -3 \end{pmatrix}
\begin{pmatrix} 4 \\ -3 \end{pmatrix} ACCEPTS \begin{bmatrix} 4 \\ -3 \end{bmatrix}
\begin{pmatrix} 4 \\ -3 \end{pmatrix} ACCEPTS \begin{pmatrix}4\\-3\end{pmatrix}
\begin{pmatrix} 4 \\ -3 \end{pmatrix} REFUSES \begin{pmatrix} 4 \\ 3 \end{pmatrix}
\begin{pmatrix} 4 \\ -3 \end{pmatrix} REFUSES \begin{pmatrix} 4 & -3 \end{pmatrix}
\begin{pmatrix} \frac{3}{5} & \frac{1}{5} \end{pmatrix} ACCEPTS \begin{pmatrix} 3/5 & 1/5 \end{pmatrix}
\begin{pmatrix} 1 & -1 \\ 1 & \phantom -1 \end{pmatrix} REFUSES \begin{pmatrix} 1 & -1 \\ 1 & -1 \end{pmatrix}
[1,\infty) ACCEPTS [1, \infty) ;; \left[1, \infty\right) ;; [1, +\infty) ;; x \in [1,\infty)
[1,\infty) REFUSES (1, \infty) ;; x > 1
(-\infty,-27)\cup(-27,\infty) ACCEPTS (-\infty,-27) \cup (-27,\infty) ;; (-27,\infty) \cup (-\infty,-27)
(-\infty,-27)\cup(-27,\infty) REFUSES (-\infty,-27] \cup [-27,\infty)
(-\infty,\infty) ACCEPTS (-\infty, \infty) ;; \mathbb{R}
(-\infty, -1) \cup (4, \infty) ACCEPTS (-\infty, -1) \cup (4, \infty)
(-\infty, -1) \cup (4, \infty) REFUSES (-\infty,-1)\cup(4,5)
12_5 ACCEPTS 12_5 ;; 12_{5} ;; 12
12_5 REFUSES 13_5
1323_{4} ACCEPTS 1323_4
1101001_2 ACCEPTS 1101001_2 ;; 1101001_{2} ;; 1101001
1101001_2 REFUSES 1101011_2
\$42409 ACCEPTS \$42409 ;; 42409 ;; 42,409 ;; \$42,409 ;; \$42,\!409 ;; 42409\text{ dollars} ;; $42409
\$42409 REFUSES \$42408
\$4813.24 ACCEPTS \$4,813.24 ;; 4813.24
\$1,\!657 ACCEPTS \$1657 ;; 1,657
17\% ACCEPTS 17\% ;; 17 ;; 17 \% ;; 0.17 ;; 17% ;; 17 \text{ percent} ;; 17 percent
17\% REFUSES 18\%
73^\circ ACCEPTS 73^\circ ;; 73^{\circ} ;; 73 ;; 73° ;; 73 \text{ degrees} ;; 73\degree
73^\circ REFUSES 74^\circ
\{4,5,7\} ACCEPTS \{4,5,7\} ;; \{7,5,4\} ;; \left\{4, 5, 7\right\} ;; 4,5,7
\{4,5,7\} REFUSES \{4,5,6\} ;; \{4,5\}
k = \frac{-33}{2} ACCEPTS -\frac{33}{2} ;; k = -16.5
x = 2 ACCEPTS 2 ;; x=2
2 ACCEPTS x = 2 ;; y=2
2 REFUSES x = 3
y=-2x+1 ACCEPTS -2x+1 ;; y = 1 - 2x ;; 2x+y=1
y=-2x+1 REFUSES y=-2x-1
y=10x-4 ACCEPTS y = 10x - 4
-80\leq g(x)\leq 82 ACCEPTS -80 \le g(x) \le 82 ;; [-80, 82]
\left(\frac{20}{3},0\right) ACCEPTS \left(\frac{20}{3}, 0\right) ;; (20/3, 0)
\left(\frac{20}{3},0\right) REFUSES (\frac{20}{3}, 1) ;; (0, \frac{20}{3})
\left[-3,-\frac{4}{3}\right] ACCEPTS \left[-3,-\frac{4}{3}\right]
\left[-3,-\frac{4}{3}\right] REFUSES \left(-3,-\frac{4}{3}\right)
5-12i ACCEPTS 5-12i ;; -12i+5
5-12i REFUSES 5+12i
-i ACCEPTS -i ;; 0-i
-i REFUSES i
-\frac{1}{5} - \frac{2}{5}i ACCEPTS -\frac{1+2i}{5} ;; -\frac15 - \frac{2i}{5}
(4,4) ACCEPTS (4, 4) ;; x=4, y=4
(4,4) REFUSES (4, 5)
(8,38) REFUSES (38, 8)
10\frac{1}{12} ACCEPTS 10\frac{1}{12} ;; \frac{121}{12} ;; 10 \frac{1}{12}
10\frac{1}{12} REFUSES 10\frac{1}{11}
1\frac{2}{3} ACCEPTS 1\frac23 ;; 5/3
-15\frac{3}{5} ACCEPTS -15.6
6\frac{1}{6}\text{ feet} ACCEPTS 6\frac{1}{6} ;; \frac{37}{6} \text{ ft}
B ACCEPTS B ;; \text{B}
\text{(B)} ACCEPTS \text{(B)} ;; (B) ;; B ;; \textbf{(B)}
\text{(C)} REFUSES \text{B}
CD ACCEPTS CD ;; \text{CD}
CD REFUSES DC
LQSX ACCEPTS LQSX ;; \text{LQSX}
LQSX REFUSES LQSY
\log\left(\frac{2007}{2006}\right) ACCEPTS \log \frac{2007}{2006}
\ln 2 ACCEPTS \ln 2
\frac{25\pi}{2} ACCEPTS \frac{25\pi}{2} ;; 12.5\pi ;; \frac{25}{2}\pi ;; 25\pi/2
\frac{25\pi}{2} REFUSES \frac{25\pi}{3} ;; 39.27
\frac94\pi ACCEPTS \frac{9\pi}{4}
7-2\pi ACCEPTS 7 - 2\pi
1:4 ACCEPTS 1:4 ;; 1 : 4 ;; \frac{1}{4}
1:4 REFUSES 4:1
8\!:\!34 \text{ p.m.} ACCEPTS 8:34 ;; 8:34 \text{ p.m.}
8\!:\!34 \text{ p.m.} REFUSES 8:35
19:60 ACCEPTS 19:60
\mathbf{2340} ACCEPTS 2340
6, 8\text{, and }10 ACCEPTS 6,8,10 ;; 6, 8, \text{ and } 10
6,8,10 ACCEPTS 6, 8, 10 ;; 10, 8, 6
6,8,10 REFUSES 6, 8 ;; 6,8,10,12
2, 3, \text{ and } 4 ACCEPTS 2, 3, 4
9\text{ values} ACCEPTS 9
1.85\ \text{USD} ACCEPTS 1.85
1 \pm \sqrt{19} ACCEPTS 1 \pm \sqrt{19} ;; 1 + \sqrt{19}, 1 - \sqrt{19}
1 \pm \sqrt{19} REFUSES 1 + \sqrt{19} ;; 1 - \sqrt{19}
1 - \sqrt{19},1 + \sqrt{19} ACCEPTS 1\pm\sqrt{19}
3 \pm 2 \sqrt{2} ACCEPTS 3 \pm 2 \sqrt{2}
2,-2 ACCEPTS \pm 2
\pm 2 ACCEPTS 2, -2
\pm 2 REFUSES 2
2\sqrt{5} ACCEPTS 2\sqrt{5} ;; \sqrt{20} ;; 2\sqrt5
2\sqrt{5} REFUSES 4.472
\sqrt[3]{2} ACCEPTS \sqrt[3]{2} ;; 2^{1/3}
\infty ACCEPTS \infty
\infty REFUSES -\infty
\emptyset ACCEPTS \emptyset ;; \varnothing ;; \{\}
\text{undefined} ACCEPTS \text{undefined} ;; undefined
\text{undefined} REFUSES \text{does not exist}
\text{even} ACCEPTS \text{even} ;; even
\text{even} REFUSES \text{odd} ;; odd ;; \text{neither}
\text{ellipse} ACCEPTS \text{ellipse}
\text{ellipse} REFUSES \text{parabola}
\text{Evelyn} ACCEPTS \text{Evelyn}
\text{Evelyn} REFUSES \text{Angela} ;; Angela
(x+1)^2 ACCEPTS x^2+2x+1
x^2+2x+1 ACCEPTS (x+1)^2
x^2+2x+1 REFUSES x^2 + 2x + 2
x^3+3x-6 ACCEPTS x^{3}+3x-6
p^2-q ACCEPTS p^2 - q
p^2-q REFUSES p^2 + q
\sin x ACCEPTS \sin x
(\sin x)^2 ACCEPTS \sin^2 x
10^6 ACCEPTS 1000000
1000000 ACCEPTS 10^6 ;; 1 \times 10^6
6.02 \cdot 10^{23} ACCEPTS 6.02 \times 10^{23}
11,\! 111,\! 111,\! 100 ACCEPTS 11{,}111{,}111{,}100 ;; 11111111100
\frac13 ACCEPTS 0.\overline{3}
\frac13 REFUSES 0.333
0.\overline{1331} ACCEPTS 0.\overline{1331}
0.5 ACCEPTS .5 ;; 0.50
5 ACCEPTS 5. ;; +5 ;; --5 ;; \boxed{5} ;; \fbox{5} ;; \text{5} ;; \mathbf{5} ;; \displaystyle 5 ;; \left(5\right)
5 ACCEPTS (5) ;; {5} ;; $5$ ;; \(5\) ;; \[5\] ;; 5\, ;; 5\; ;; \,5 ;; 5 \quad ;; n = 5
5 REFUSES \approx 5
120 ACCEPTS 5!
10 ACCEPTS \binom{5}{2} ;; \dbinom{5}{2}
6 ACCEPTS 2 \cdot 3 ;; 2*3 ;; 2 \times 3
\frac12 ACCEPTS \displaystyle\frac{1}{2} ;; \mathbf{\frac{1}{2}}
5,6 ACCEPTS 5 \text{ or } 6 ;; 5 or 6 ;; 5 \text{ and } 6 ;; x = 5 \text{ or } x = 6 ;; x=5, x=6 ;; x=5,6
5,6 ACCEPTS x \in \{5,6\} ;; \{5, 6\}
x^2 ACCEPTS f(x) = x^2
f(x)=x^2 ACCEPTS f(x)=x^2
a^2+b^2=c^2 ACCEPTS a^2+b^2=c^2
x + y = 5 ACCEPTS x+y=5
2y - x = 0 ACCEPTS x-2y=0
x<5 ACCEPTS x < 5 ;; x \lt 5 ;; 5 > x ;; (-\infty,5)
x<5 REFUSES x \le 5
\frac{\sqrt{3}}{3} ACCEPTS \frac{\sqrt{3}}{3} ;; \frac{1}{\sqrt{3}} ;; \frac{\sqrt3}3 ;; \sqrt{3}/3
\frac{\sqrt{3}}{3} REFUSES \frac{\sqrt{3}}{2}
-1 ACCEPTS e^{i\pi}
\angle ABC ACCEPTS \angle ABC
\triangle ABC ACCEPTS \triangle ABC
|x| ACCEPTS |x|
2016 ACCEPTS \(2{,}016\)
(3,5) ACCEPTS $\left(3, 5\right)$ ;; \[ (3,5) \]. ;; (x,y) = (3,5)
12 ACCEPTS \boldsymbol{12}
12348 \pi ACCEPTS 12,348\pi
8910^\circ ACCEPTS 8,910^\circ ;; 8910°
4950x^2 + 9800x + 4851 ACCEPTS 4,950x^2 + 9,800x + 4,851
(-\infty, -27) \cup [-8, -1] ACCEPTS (−∞, −27) ∪ [−8, −1]
[-6,\infty) ACCEPTS [−6,∞)
2\sqrt{3} ACCEPTS 2√3
x^2+1 ACCEPTS x²+1
\frac52 ACCEPTS 2½
20\text{ cm} ACCEPTS 20\mathrm{~cm} ;; 20~\text{cm} ;; 20\ \text{cm}
\frac25 i ACCEPTS \frac{2i}{5}
2i ACCEPTS (1+i)^2 ;; \sqrt{-4}
5 + 45i ACCEPTS x = 5 + 45i
5 + 45i REFUSES 5 - 45i
203_7 ACCEPTS 203_{7}
203_7 REFUSES 203_8
(100,101) ACCEPTS (100, 101)
(100,101) REFUSES (100,102) ;; 100101
(3281,3280) ACCEPTS (3281, 3280)
31250 ACCEPTS 31,250
\frac16 ACCEPTS 0.1\overline{6}
\frac15 REFUSES 0.1\overline{6}
-\frac43 ACCEPTS -1.\overline{3}
\text{CBAD} ACCEPTS CBAD
\text{CBAD} REFUSES ABDC
-2 \text{ or } -12 ACCEPTS -12 \text{ or } -2
45^\circ, 135^\circ, 225^\circ, 315^\circ ACCEPTS 45°, 135°, 225°, 315°
5,-11 ACCEPTS 5\,,-11
42 ACCEPTS \textbf{42}
5x+5 ACCEPTS 5(x+1)
5\sqrt{2} ACCEPTS 5\sqrt{2} \text{ units}
a/b ACCEPTS \frac{a}{b}
\frac23 ACCEPTS 2:3
(2,\pi) ACCEPTS (r,\theta)=(2,\pi)
1,2 ACCEPTS k \in \{1,2\}
2000 ACCEPTS 2.0\times10^{3}
6.25 ACCEPTS 6 \frac{1}{4}
R-r ACCEPTS R - r ;; -r+R
R-r REFUSES r-R ;; r - r ;; R-R
\pi r^2 ACCEPTS \pi\,r^2 ;; r^2\pi
\pi r^2 REFUSES \pi R^2 ;; \Pi r^2
\sqrt{R^2-r^2} REFUSES \sqrt{r^2-R^2}
\frac{R}{r} REFUSES \frac{r}{R}
(R,r) REFUSES (r,R)
\{A,b\} REFUSES \{a,B\}
\binom{N}{k} REFUSES \binom{n}{k}
R_1 REFUSES r_1 ;; R_2
\vec{A} REFUSES \vec{a}
\Delta REFUSES \delta
\Gamma REFUSES \gamma
I^2R ACCEPTS RI^2
I^2R REFUSES -R ;; i^2R
2i ACCEPTS 2*I
2i REFUSES 2I
e REFUSES E
C ACCEPTS \text{(c)} ;; (c) ;; \text{c} ;; \text{(C) Plane} ;; (C) ;; \textbf{(C)}\ 5
C REFUSES c ;; D ;; \text{(D)} ;; \text{(C) or (D)}
\text{(C)} ACCEPTS \text{(C) Plane} ;; \text{(c)} ;; c ;; \textbf{(C) Plane}
\text{(C)} ACCEPTS (C)\text{ Plane} ;; (C) Plane ;; \mathrm{(C)}
\text{(C)} REFUSES \text{(D) Plane} ;; \text{(C) Plane or (D) Line} ;; (C)+1
\text{(C)} REFUSES (C)^2 ;; \text{(A), (C)} ;; \text{Plane}
\text{(C) Plane} ACCEPTS \text{(C)} ;; C ;; \text{(C) plane.}
\text{(C) Plane} REFUSES \text{(D)} ;; \text{(C) Sphere}
\text{(A), (C)} REFUSES \text{(A)}
\text{even} ACCEPTS \text{Even} ;; Even ;; EVEN
even ACCEPTS Even ;; \text{Even}
\text{No} ACCEPTS no ;; No
(\text{yes}, 5) ACCEPTS (\text{Yes}, 5)
\text{even}, \text{Odd} ACCEPTS \text{odd}, \text{Even}
5 ACCEPTS 5\text{ s} ;; 5\text{s} ;; 5\,\text{s} ;; 5~\text{s}
5 ACCEPTS 5 \mathrm{m} ;; 5\,\mathrm{m/s} ;; 5\,\mathrm{m}\,\mathrm{s}^{-1}
5 ACCEPTS 5 \frac{\text{m}}{\text{s}} ;; 5 cm ;; 5cm ;; 5 cm^2
5 ACCEPTS 5 miles per hour ;; 5 square feet ;; 5 degrees ;; \text{5 cm}
5 REFUSES 5s ;; 5 m ;; 5t ;; 5ab
5 REFUSES 5\text{ or 6} ;; 5\text{ apples and 2 pears} ;; 5\text{ cm} + 3 ;; 5\text{m}_{1} + \frac{1}{2}
3m ACCEPTS m \cdot 3 ;; 3\text{ m} ;; 3 m
3m REFUSES 3 ;; 3n ;; 3M
5s REFUSES 5t ;; 5
\frac{37}{4}m ACCEPTS \frac{37m}{4} ;; 9.25m ;; \frac{37}{4}\text{m}
\frac{37m}{4} ACCEPTS \frac{37}{4}m ;; \frac{37}{4}\text{ m}
\frac{37m}{4} REFUSES \frac{37}{4} ;; \frac{37}{4}n
x^2 REFUSES x^2m ;; x^2 s
3\text{ m} ACCEPTS 3 ;; 3m ;; 3 m ;; 3\text{ meters}
3\text{ m} REFUSES 3\text{ cm} ;; 3\text{ hours} ;; 3n
5\text{ eggs} ACCEPTS 5 eggs ;; 5
8:34 \text{ p.m.} REFUSES 8:34 \text{ a.m.}
2\mathbf{v} REFUSES 2\mathbf{w} ;; 2
2\mathbf{i}+3\mathbf{j} REFUSES 2\mathbf{i}-3\mathbf{j} ;; 2\mathbf{i}
\angle\text{A} REFUSES \angle\text{B}
12^{\text{th}}\text{ grade} ACCEPTS 12 ;; 12th grade ;; 12^{th}
12^{\text{th}}\text{ grade} ACCEPTS 12\text{th grade} ;; \text{12th grade} ;; 12^\text{th}\text{ grade}
12^{\text{th}}\text{ grade} REFUSES 11^{\text{th}}\text{ grade} ;; 11 ;; 12x
2^{nd} REFUSES 2
\frac{3\text{rd}}{2} REFUSES 3 ;; \frac{3}{2}
-2 ACCEPTS x=-2 ;; \{-2\}
-2 REFUSES -2,-2 ;; -2, -2.0 ;; -2 \text{ and } -2 ;; x=-2 \text{ or } x=-2 ;; -2;-2 ;; 2,-2
\{1\} ACCEPTS \{1,1\} ;; 1
\{1\} REFUSES 1,1
1,1,2 ACCEPTS 2,1,1 ;; 1,2,1.0
1,1,2 REFUSES 1,2 ;; 1,2,2
75^\circ, 75^\circ ACCEPTS 75,75
75^\circ, 75^\circ REFUSES 75^\circ
i REFUSES i,i
1,2 ACCEPTS 2,1,2
x = 12 ACCEPTS 12 cm ;; x = 12 cm
2-2p ACCEPTS 2 - 2p cm ;; 2-2p feet
2-2p REFUSES 2-2p m ;; 2-2pcm
\text{four} ACCEPTS four feet
[1,2] REFUSES [1,2],[1,2]
x_1 ACCEPTS x_{1}
x_1 REFUSES x_1+2 ;; x_2 ;; x
E_1 ACCEPTS E_{1} ;; \text{E}_1
E_1 REFUSES E_2 ;; e_1 ;; E
E_1+2 ACCEPTS 2+E_{1}
x_{max} ACCEPTS x_{\text{max}} ;; x_\text{max}
\text{H}_2 REFUSES \text{H}_2\text{O} ;; \text{H}
3 REFUSES 3\text{P}_{1}+\frac{3}{4}
10101_2 ACCEPTS 10101_{2} ;; 10101_{\text{two}} ;; 10101\text{ base }2 ;; 10101\text{ (base 2)}
10101_2 REFUSES 10101_3 ;; 10101\text{ base }3
12_5, 13_6 REFUSES 12_6, 13_5
\text{A5}_{11} ACCEPTS A5_{11}
\text{A5}_{11} REFUSES A5_{12}
4.5e33 ACCEPTS 4.5e33 ;; 4.5e+33 ;; 4.5E33 ;; 4.5 \times 10^{33} ;; 4.5\cdot10^{33} ;; 45\times 10^{32} ;; 4.50e33
4.5e33 REFUSES 4.5e32 ;; 4.6e33 ;; 4.5
1e-5 ACCEPTS 1e-5 ;; 10^{-5} ;; 0.00001 ;; 1.0\times10^{-5} ;; 1E-5 ;; 1e-5\text{ m}
1e-5 REFUSES 1e-6 ;; 2e-5 ;; e-5 ;; 1e5
2e-1 ACCEPTS -1+2e ;; 0.2
1.6\times10^{-19} ACCEPTS 1.6e-19 ;; 16\times10^{-20}
1.6\times10^{-19} REFUSES 9.1\times10^{-31} ;; 1.7e-19 ;; 0
(1e-7, 2) REFUSES (2e-7, 2)
"""


VERDICTS = {" ACCEPTS ": 1.0, " REFUSES ": 0.0, " UNGRADED ": None}


def pairs(table: str = _TABLE) -> list[tuple[str, str, float | None]]:
    """Answer, gold and verdict of every pair."""
    found = []
    for line in table.strip("\n").replace("ZERO-WIDTH", "\u200b").split("\n"):
        word = next(word for word in VERDICTS if word in line)
        gold, answers = line.split(word)
        found += [(answer, gold, VERDICTS[word]) for answer in answers.split(" ;; ")]
    return found
